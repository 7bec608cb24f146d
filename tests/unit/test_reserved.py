"""Reserved names: one scheme, with room in the bounds of names; and what headers of copies say."""

import pytest
from support.cases import case

from vq.errors import InvalidArgument
from vq.limits import NAME_CHARS_MAX, PROPERTIES_BYTES_MAX, STORED_PROPERTIES_BYTES_MAX
from vq.model import Message, check_name
from vq.reserved import (
    ATTEMPTS,
    CORRELATION,
    FIRST_FAILED,
    GROUP_CHARS_MAX,
    ORIGIN,
    REASON_CHARS_MAX,
    REPLY_TO,
    DeliveryFailure,
    MessageOrigin,
    Purpose,
    ReplyAddress,
    address_in,
    answered_topic,
    check_own_name,
    group_of,
    headers_of_copy,
    is_reserved,
    origin_in,
    own_headers,
    probe_topic,
    replies_topic,
    topic_of,
)


def test_a_topic_has_one_of_replies_if_its_name_leaves_room() -> None:
    assert replies_topic("prices") == "_vq.replies.prices"
    longest = "t" * (NAME_CHARS_MAX - len("_vq.replies."))
    name = check_name("topic", replies_topic(longest))
    assert is_reserved(name)
    assert answered_topic(name) == longest
    with pytest.raises(InvalidArgument, match=r"takes no requests.*at most 188"):
        replies_topic(f"{longest}t")
    for other in ("_vq.replies.", "_vq.replies", "_vq.retry.prices", "prices"):
        with case(other):
            assert answered_topic(other) is None


def test_headers_of_a_request_say_where_its_reply_goes_and_are_copied() -> None:
    address = ReplyAddress("_vq.replies.a-b.c-1", 3, "4fe1", "c0")
    headers = {**address.headers, "own": "1", ORIGIN: "t-0@0"}
    assert address_in(headers) == address
    assert own_headers(headers) == {**address.headers, "own": "1"}
    for broken in (
        {},
        {REPLY_TO: "_vq.replies.t-3/4fe1"},
        {REPLY_TO: "orders-3/4fe1", CORRELATION: "c0"},
        {REPLY_TO: "_vq.replies.t-3/a||b", CORRELATION: "c0"},
        {REPLY_TO: "_vq.replies.t/4fe1", CORRELATION: "c0"},
        {CORRELATION: "c0"},
    ):
        with case(broken):
            assert address_in(broken) is None


def test_a_broker_group_has_a_topic_for_the_probe_if_its_name_leaves_room() -> None:
    assert probe_topic("b1") == "_vq.probe.b1"
    longest = "b" * (NAME_CHARS_MAX - len(probe_topic("")))
    assert is_reserved(check_name("topic", probe_topic(longest)))
    with pytest.raises(InvalidArgument, match=r"can have no topic _vq\.probe\.<group>"):
        probe_topic(f"{longest}b")


def test_a_group_has_a_topic_for_each_purpose_and_the_name_tells_the_group() -> None:
    assert topic_of(Purpose.DEAD_LETTERS, "orders") == "_vq.dlq.orders"
    assert topic_of(Purpose.RETRY, "orders") == "_vq.retry.orders"
    for group in ("g", "a.b-c_d", "_vq.dlq.g"):
        for purpose in Purpose:
            name = check_name("topic", topic_of(purpose, group))
            assert is_reserved(name)
            assert [group_of(name, each) for each in Purpose] == [
                group if each is purpose else None for each in Purpose
            ]
    for name in ("orders", "vq.dlq.g", "_vq.dlq.", "_vq.dlq", "_vqdlq.g", "x_vq.dlq.g"):
        with case(name):
            assert group_of(name, Purpose.DEAD_LETTERS) is None


def test_a_group_whose_name_is_too_long_is_told_the_bound() -> None:
    longest = "g" * GROUP_CHARS_MAX
    assert max(len(topic_of(each, longest)) for each in Purpose) == NAME_CHARS_MAX
    with pytest.raises(InvalidArgument, match=f"{GROUP_CHARS_MAX + 1} characters.*at most 200"):
        topic_of(Purpose.RETRY, longest + "g")


def test_users_may_name_everything_else() -> None:
    assert check_own_name("vq.dlq.g") == "vq.dlq.g"
    with pytest.raises(InvalidArgument, match=r"'_vq\.new'.*reserved.*choose another name"):
        check_own_name("_vq.new")


def test_the_headers_of_a_copy_come_back_as_values() -> None:
    origin, failure = MessageOrigin("a-b.c", 3, 2**63, 17), DeliveryFailure(16, 1_764_000, "no\nid")
    headers = headers_of_copy(origin, failure)
    copy = Message("_vq.dlq.g", b"", headers={"mine": "x", **headers})
    assert (copy.origin, copy.failure) == (origin, failure)
    assert own_headers(copy.headers) == {"mine": "x"}
    assert all(is_reserved(name) for name in headers)
    unnumbered = MessageOrigin("t", 0, 0)
    assert origin_in(headers_of_copy(unnumbered, failure)) == unnumbered


def test_headers_that_somebody_else_wrote_are_no_values() -> None:
    """Another client may write anything; a reader must not fail for it."""
    for headers in (
        None,
        {},
        {ORIGIN: ""},
        {ORIGIN: "orders@3"},
        {ORIGIN: "orders-3@" + "9" * 100},
        {ATTEMPTS: "3"},
        {ATTEMPTS: "-1", FIRST_FAILED: "0"},
        {ATTEMPTS: "٣", FIRST_FAILED: "0"},
    ):
        with case(headers):
            message = Message("t", b"", headers=headers)
            assert message.origin is None
            assert message.failure is None


def test_a_reason_is_bounded_and_is_text_whatever_it_was() -> None:
    failure = DeliveryFailure(1, 0, "\ud800" + "x" * 10_000)
    headers = headers_of_copy(MessageOrigin("t" * NAME_CHARS_MAX, 4095, 2**64 - 1, 2**64), failure)
    found = Message("t", b"", headers=headers).failure
    assert found is not None
    assert found.reason.startswith("\\ud800xxx")
    assert len(found.reason) == REASON_CHARS_MAX
    wide = headers_of_copy(
        MessageOrigin("t" * NAME_CHARS_MAX, 4095, 2**64 - 1, 2**64),
        DeliveryFailure(2**32, 2**63, "\U0001f600" * 1_000),
    )
    size = sum(len(name) + len(text.encode()) + 16 for name, text in wide.items())
    assert size <= STORED_PROPERTIES_BYTES_MAX - PROPERTIES_BYTES_MAX
