"""Definitions in the console: the file, the plan that is seen first, and what is refused."""

import html
import json
from collections.abc import Callable
from typing import Any

import pytest
from support.broker import MemoryCluster
from support.console import PASSWORD, Browser, RunningConsole, running

from vq import aio
from vq.console.accounts.accounts import AccountRole, add_account
from vq.console.clusters.kept import KEPT_PLANS_MAX
from vq.console.pages import definitions as pages
from vq.testing.waiting import until


async def _file(browser: Browser, query: str = "") -> dict[str, Any]:
    answer = await browser.get(f"/c/test/definitions/file{query}")
    assert "attachment" in answer.headers["content-disposition"]
    found: dict[str, Any] = answer.json()
    return found


async def _planned(browser: Browser, document: dict[str, Any], **form: str) -> str:
    """Return the address of the plan of a document."""
    await browser.get("/c/test/definitions")
    form = {"document": json.dumps(document), **form}
    answer = await browser.post("/c/test/definitions", form)
    assert answer.status_code == 303, answer.text
    location: str = answer.headers["location"]
    return location


def _with(document: dict[str, Any], change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    changed = json.loads(json.dumps(document))
    change(changed)
    found: dict[str, Any] = changed
    return found


async def _ended(console: RunningConsole) -> None:
    await until(lambda: all(each.ended_ms for each in console.app.console.door.jobs.values()))


async def test_a_file_is_downloaded_changed_and_imported_by_a_plan(console) -> None:
    """Nothing changes before the name is typed; then what is not there is made, and told."""
    browser = console.browser()
    found = await _file(browser)
    assert [each["topic"] for each in found["topics"]] == ["t"]

    def change(document: dict[str, Any]) -> None:
        document["topics"][0]["settings"]["retention_hours"] = 7
        document["topics"].append({"topic": "made", "settings": {"partitions": 2}})

    plan = await _planned(browser, _with(found, change))
    page = html.unescape((await browser.get(plan)).text)
    assert "retention_hours: 72 → 7" in page
    assert ">made<" in page
    admin = aio.MessageFactory.on_cluster(console.site.cluster).admin
    assert (await admin.get_topic("t")).settings.retention_hours == 72
    wrong = await browser.post(f"{plan}/act", {"act": "apply", "confirm": "other"})
    assert wrong.status_code == 400
    assert (await browser.post(f"{plan}/act", {"act": "apply", "confirm": "test"})).headers[
        "location"
    ] == plan
    await _ended(console)
    assert (await admin.get_topic("t")).settings.retention_hours == 7
    assert (await admin.get_topic("made")).settings.partitions == 2
    page = (await browser.get(plan)).text
    assert ">done<" in page
    rows = (await browser.get(f"{plan}?export=json")).json()
    assert {(each["name"], each["outcome"]) for each in rows} == {("t", "done"), ("made", "done")}
    again = await browser.post(f"{plan}/act", {"act": "apply", "confirm": "test"})
    assert again.status_code == 409
    acts = (await browser.get("/c/test/audit?export=json")).json()
    assert [(each["act"], each["outcome"]) for each in acts] == [("import_definitions", "done")]
    same = await browser.post(f"{plan}/act", {"act": "again"})
    assert "Nothing has to change" in (await browser.get(same.headers["location"])).text


async def test_a_plan_of_before_a_change_is_refused(console) -> None:
    """The page says what has changed, and has no button; the act is refused, too."""
    browser = console.browser()
    found = await _file(browser)
    plan = await _planned(
        browser,
        _with(found, lambda each: each["topics"][0]["settings"].update(retention_hours=7)),
    )
    assert 'value="apply"' in (await browser.get(plan)).text
    admin = aio.MessageFactory.on_cluster(console.site.cluster).admin
    await admin.alter_topic("t", retention_hours=9)
    page = (await browser.get(plan)).text
    assert "Changed since the plan was made: topic t" in page
    assert 'value="apply"' not in page
    refused = await browser.post(f"{plan}/act", {"act": "apply", "confirm": "test"})
    assert refused.status_code == 409
    assert "topic &#39;t&#39; has changed since the plan" in refused.text
    assert (await admin.get_topic("t")).settings.retention_hours == 9
    again = (await browser.post(f"{plan}/act", {"act": "again"})).headers["location"]
    assert "retention_hours: 9 → 7" in html.unescape((await browser.get(again)).text)


async def test_only_a_plan_with_deletions_deletes_and_they_are_seen_first(console) -> None:
    browser = console.browser()
    found = _with(await _file(browser), lambda each: each["topics"].clear())
    page = (await browser.get(await _planned(browser, found))).text
    assert "Nothing has to change" in page
    plan = await _planned(browser, found, prune="on")
    page = html.unescape((await browser.get(plan)).text)
    assert ">delete<" in page
    assert "--prune" in page
    await browser.post(f"{plan}/act", {"act": "apply", "confirm": "test"})
    await _ended(console)
    admin = aio.MessageFactory.on_cluster(console.site.cluster).admin
    assert [each.name for each in await admin.deleted_topics()] == ["t"]


@pytest.mark.parametrize(
    "document",
    ["", "   ", "no JSON", "[" * 100_000, "7", "{}", '{"format": "vq definitions", "v": 9}'],
)
async def test_a_file_that_is_none_says_so(console, document) -> None:
    """In the page, with what is wrong; no plan is kept."""
    browser = console.browser()
    await browser.get("/c/test/definitions")
    answer = await browser.post("/c/test/definitions", {"document": document})
    assert answer.status_code == 400
    assert 'role="alert"' in answer.text
    assert console.site.definitions.all() == []


async def test_a_file_of_more_than_a_megabyte_is_taken_and_one_beyond_the_bound_is_not(
    console, monkeypatch
) -> None:
    """As a part of a form, and as a file."""
    browser = console.browser()
    found = await _file(browser)
    text = json.dumps(found) + " " * 3_000_000
    await browser.get("/c/test/definitions")
    for options in (
        {"data": {"csrf": browser.csrf}, "files": {"file": ("d.json", text)}},
        {"data": {"csrf": browser.csrf, "document": text}, "files": {"file": ("", b"")}},
    ):
        answer = await browser.http.post("/c/test/definitions", **options)
        assert answer.status_code == 303, answer.text[-500:]
    form = {"csrf": browser.csrf, "document": "x" * 40_000_000}
    answer = await browser.http.post("/c/test/definitions", data=form)
    assert answer.status_code == 413
    assert str(pages.FILE_BYTES_MAX) in answer.text


async def test_the_last_plans_are_kept(console) -> None:
    browser = console.browser()
    found = await _file(browser)
    plans = [await _planned(browser, found) for _ in range(KEPT_PLANS_MAX + 1)]
    assert (await browser.get(plans[0])).status_code == 400
    page = (await browser.get("/c/test/definitions")).text
    assert all(each in page for each in plans[1:])
    assert f'"{plans[0]}"' not in page
    bad = await browser.post(f"{plans[-1]}/act", {"act": "x"})
    assert bad.status_code == 400


async def test_a_viewer_downloads_and_makes_no_plan(cluster: MemoryCluster, database) -> None:
    await database.run(lambda each: add_account(each, "a-viewer", AccountRole.VIEWER, PASSWORD))
    async with running(cluster, database) as console:
        browser = await console.as_role(AccountRole.VIEWER)
        found = await _file(browser)
        page = (await browser.get("/c/test/definitions")).text
        assert 'type="file"' not in page
        answer = await browser.post("/c/test/definitions", {"document": json.dumps(found)})
        assert answer.status_code == 403


async def test_a_program_plans_and_imports_over_json(console) -> None:
    """The plan goes to the program and back; one of before a change is refused."""
    browser = console.browser()
    await browser.get("/c/test")
    wanted = (await browser.ask("export_definitions")).json()
    wanted["topics"][0]["settings"]["retention_hours"] = 7
    planned = (await browser.ask("plan_import_definitions", definitions=wanted)).json()
    assert (await browser.ask("changed_definitions", planned=planned)).json() == []
    done = await browser.ask("import_definitions", planned=planned)
    assert done.status_code == 200, done.text
    assert [each["name"] for each in done.json() if each["action"] == "change"] == ["t"]
    admin = aio.MessageFactory.on_cluster(console.site.cluster).admin
    assert (await admin.get_topic("t")).settings.retention_hours == 7
    again = await browser.ask("import_definitions", planned=planned)
    assert again.status_code == 409
    assert "has changed since the plan" in again.json()["detail"]


def test_the_bound_of_a_file_is_above_that_of_other_forms() -> None:
    """So that what a large cluster exports can be imported."""
    assert pages.DEFINITIONS.body_bytes_max == pages.FILE_BYTES_MAX
