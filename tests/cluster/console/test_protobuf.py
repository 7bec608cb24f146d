"""Contents of messages as protobuf: by a set that somebody uploads, and a type for each topic."""

from typing import Any

import pytest
import sqlalchemy
from support.console import Browser, RunningConsole, running
from support.filled_console import give_up
from support.protobuf import SHOP, order_class, packed, shop, well_known

from vq.console.accounts.accounts import AccountRole
from vq.console.acts import descriptors as kept
from vq.console.database.schema import audit
from vq.model import Message

LIST = "/c/test/descriptors"


async def _act(browser: Browser, act: str, data: bytes | None = None, **form: str) -> Any:
    await browser.get(LIST)
    sent = {"csrf": browser.csrf, "act": act, **form}
    files = None if data is None else {"file": ("x.desc", data)}
    return await browser.http.post(f"{LIST}/act", data=sent, files=files)


async def _upload(browser: Browser, data: bytes = SHOP, name: str = "shop") -> Any:
    return await _act(browser, "upload", data, name=name)


async def _choose(browser: Browser, kind: str = "shop.Order") -> Any:
    return await _act(browser, "choose", topic="t", descriptors="shop", type=kind)


async def test_messages_of_a_topic_are_read_by_the_type_that_was_chosen(console, factory) -> None:
    """From then on, without saying so each time; and its dead letters, too. All is in the audit."""
    order = order_class()(number=7, state=1, lines=[{"article": "<b>"}])
    async with await factory.create_producer() as producer:
        await producer.send(Message("t", order.SerializeToString()))
    browser = console.browser()
    untyped = await browser.get("/c/test/topics/t/messages?as=protobuf")
    assert "not known" in untyped.text
    assert f"{LIST}?topic=t" in untyped.text
    done = await _upload(browser)
    assert done.headers["location"] == f"{LIST}/shop"
    assert "shop.Order.Line" in (await browser.get(f"{LIST}/shop")).text
    assert (await _choose(browser)).headers["location"] == "/c/test/topics/t/messages"
    shown = (await browser.get("/c/test/topics/t/messages")).text
    assert "&#34;state&#34;: &#34;PAID&#34;" in shown
    assert "&lt;b&gt;" in shown
    await give_up(factory, "desk", "t", 1)
    letters = (await browser.get("/c/test/dead-letters/desk")).text
    assert "PAID" in letters
    assert "ValueError" in letters
    assert "_vq." not in letters  # what these headers say is told in words

    assert (await _act(browser, "forget", topic="t")).status_code == 303
    assert "PAID" not in (await browser.get("/c/test/topics/t/messages")).text
    await _choose(browser)
    assert (await _act(browser, "delete", name="shop", confirm="no")).status_code == 400
    assert (await _act(browser, "delete", name="shop", confirm="shop")).status_code == 303
    assert "PAID" not in (await browser.get("/c/test/topics/t/messages")).text
    query = sqlalchemy.select(audit.c.act, audit.c.outcome).order_by(audit.c.id)
    acts = [
        tuple(each) for each in await console.database.run(lambda one: one.execute(query).all())
    ]
    names = ("keep_descriptors", "set_topic_type", "forget_topic_type", "set_topic_type")
    assert acts == [(each, "done") for each in (*names, "delete_descriptors")]


async def test_a_set_that_lost_the_type_is_told_and_contents_stay_readable(
    console, factory
) -> None:
    async with await factory.create_producer() as producer:
        await producer.send(Message("t", b'{"a": 1}'))
    browser = console.browser()
    await _upload(browser)
    await _choose(browser)
    await _upload(browser, packed(*well_known()))
    shown = (await browser.get("/c/test/topics/t/messages")).text
    assert "no type &#39;shop.Order&#39;" in shown
    assert "&#34;a&#34;: 1" in shown


@pytest.mark.parametrize(
    ("data", "name", "why"),
    [
        (b"", "shop", "no file"),
        (b"<html>", "shop", "no descriptor set"),
        (SHOP[:100], "shop", "no descriptor set"),
        (packed(shop()), "shop", "timestamp.proto"),
        (b"\0" * (1024 * 1024 + 1), "shop", "1048576"),
        (SHOP, "../shop", "../shop"),
        (SHOP, "<script>", "no name"),
        (SHOP, "", "no name"),
    ],
)
async def test_a_set_that_is_not_taken_says_why(console, data, name, why) -> None:
    """On the page that it was sent from, and nothing is kept."""
    browser = console.browser()
    answer = await _upload(browser, data, name)
    assert answer.status_code == 400
    assert why in answer.text
    assert "<script>" not in answer.text.replace("<script nonce", "")
    assert "There is no descriptor set yet" in answer.text


@pytest.mark.parametrize(
    ("topic", "kept_as", "kind"),
    [("t", "shop", "shop.Ordre"), ("t", "other", "shop.Order"), ("a/b", "shop", "shop.Order")],
)
async def test_a_type_that_is_not_there_is_not_chosen(console, topic, kept_as, kind) -> None:
    browser = console.browser()
    await _upload(browser)
    answer = await _act(browser, "choose", topic=topic, descriptors=kept_as, type=kind)
    assert answer.status_code == 400
    assert (await _act(browser, "nonsense")).status_code == 400


async def test_sets_and_types_are_bounded_in_number(console, monkeypatch) -> None:
    """One in place of another is none more."""
    monkeypatch.setattr(kept, "SETS_MAX", 2)
    monkeypatch.setattr(kept, "TYPED_TOPICS_MAX", 1)
    browser = console.browser()
    for name in ("a", "shop", "shop"):
        assert (await _upload(browser, name=name)).status_code == 303
    assert "2 descriptor sets are kept" in (await _upload(browser, name="c")).text
    for _ in range(2):
        assert (await _choose(browser)).status_code == 303
    more = await _act(browser, "choose", topic="u", descriptors="shop", type="shop.Order")
    assert "1 topics" in more.text


async def test_a_viewer_sees_types_and_changes_none(cluster, database) -> None:
    async with running(cluster, database) as console:
        await _as_viewer(console)


async def _as_viewer(console: RunningConsole) -> None:
    operator = await console.as_role(AccountRole.OPERATOR)
    assert (await _upload(operator)).status_code == 303
    viewer = await console.as_role(AccountRole.VIEWER)
    shown = await viewer.get(f"{LIST}/shop")
    assert "shop.Order" in shown.text
    assert "/descriptors/act" not in shown.text
    assert (await _upload(viewer)).status_code == 403
    assert (await _choose(viewer)).status_code == 403
