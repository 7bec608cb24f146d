"""Small values: what their text is, and what text they take."""

import pickle
import re
from typing import Any

import pytest

from vq.client.consumer.shared.work import SharedMessage
from vq.errors import InvalidArgument, NotShared
from vq.model import (
    ARCHIVE_PLACES,
    Address,
    Compression,
    DivertedResult,
    FlushMode,
    Message,
    SendResult,
    TopicSettings,
    check_archive_place,
    check_archive_places,
    is_host,
)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost:8123", Address("localhost", 8123)),
        ("10.0.0.1:0", Address("10.0.0.1", 0)),
        ("[::1]:8123", Address("::1", 8123)),
        ("[fe80::1%eth0]:1", Address("fe80::1%eth0", 1)),
        ("zwölf.example:65535", Address("zwölf.example", 65535)),
    ],
)
def test_an_address_is_written_as_it_is_read(text: str, address: Address) -> None:
    assert Address.parse(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    "text",
    ["", "host", ":1", "host:", "host:65536", "host:-1", "host:٣", "::1:8123", "[]:1", "a..b:1",
     "a b:1", "a\0b:1", f"{'x' * 64}:1"],
)  # fmt: skip
def test_an_address_that_is_none_is_refused_with_itself(text: str) -> None:
    with pytest.raises(InvalidArgument):
        Address.parse(text)


@pytest.mark.parametrize("name", ["a..b", ".", "", "x" * 64, "a\nb", "\udc80"])
def test_no_host_has_such_a_name(name: str) -> None:
    assert not is_host(name)


def test_compression_of_a_topic_is_given_as_text() -> None:
    settings = TopicSettings(compression="lz4", compression_threshold=0)
    assert settings.compression is Compression.LZ4
    assert TopicSettings(compression=Compression.NONE).compression is Compression.NONE


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"compression": "gzip"},
            "'gzip'; give one of 'none', 'zlib', 'zstd', 'lz4'",
        ),
        ({"compression_threshold": -1}, "compression_threshold = -1 is outside [0, 1048576]"),
        ({"compression_threshold": 1048577}, "compression_threshold = 1048577 is outside"),
    ],
)
def test_another_compression_of_a_topic_is_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(text)):
        TopicSettings(**settings)


@pytest.mark.parametrize(
    ("settings", "hours"),
    [
        ({}, None),
        ({"retention_policy": "keep"}, None),
        ({"retention_policy": "keep", "archive_after_hours": 100}, 100),
        ({"retention_policy": "archive"}, 24),
        ({"retention_policy": "archive", "retention_hours": None}, 24),
        ({"retention_policy": "archive", "retention_hours": 25}, 24),
        ({"retention_policy": "archive", "retention_hours": 24}, None),
        ({"retention_policy": "archive", "retention_hours": 1, "archive_to": "file:///a"}, None),
        ({"retention_policy": "archive", "archive_after_hours": 71}, 71),
    ],
)
def test_blocks_become_archives_as_policy_and_age_say(
    settings: dict[str, Any], hours: int | None
) -> None:
    assert TopicSettings(**settings).archived_after_hours == hours


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"archive_after_hours": 48}, "archive_after_hours = 48 has no effect with"),
        ({"archive_after_hours": 0, "retention_policy": "archive"}, "= 0 is outside"),
        (
            {"retention_hours": 24, "retention_policy": "archive", "archive_after_hours": 24},
            "archive_after_hours = 24 is not below retention_hours = 24",
        ),
        ({"archive_after_hours": 48}, "`--archive-after-hours default`"),
        ({"archive_to": "file:///a"}, "archive_to = 'file:///a' has no effect"),
        ({"archive_to": "file:///a", "retention_policy": "keep"}, "`--archive-to beside`"),
    ],
)
def test_archive_settings_that_do_not_fit_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(text)):
        TopicSettings(**settings)


@pytest.mark.parametrize(
    "url", ["", "/mnt/archive", "file://", "://a", "file:///a b", "file:///a\n", "x" * 2000, 5]
)
def test_archives_are_kept_at_a_url(url: Any) -> None:
    with pytest.raises(InvalidArgument, match="archive_to"):
        TopicSettings(retention_policy="archive", archive_to=url)


def test_a_password_in_a_url_is_refused_and_not_shown() -> None:
    with pytest.raises(InvalidArgument) as refused:
        TopicSettings(retention_policy="archive", archive_to="s3://me:secret@host/a")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("memory://there", "is lost with the broker's process"),
        ("simplecache::memory://there", "is lost with the broker's process"),
        ("file://mnt/archive", "file:///mnt/archive"),
        ("local://mnt/archive", "local:///mnt/archive"),
        ("FILE://mnt", "absolute path"),
    ],
)
def test_archives_do_not_go_where_they_would_not_be_found_again(url: str, told: str) -> None:
    """After a restart, in another directory perhaps."""
    with pytest.raises(InvalidArgument, match=told):
        TopicSettings(retention_policy="archive", archive_to=url)


def test_a_diverted_result_is_a_result_that_says_so() -> None:
    plain, diverted = SendResult(1, 2, 3), DivertedResult(1, 2, 3)
    assert (plain.diverted, diverted.diverted) == (False, True)
    assert tuple(diverted) == (1, 2, 3)
    assert repr(plain) == "SendResult(partition=1, offset=2, id=3)"
    assert repr(diverted) == "SendResult(partition=1, offset=2, id=3, diverted=True)"
    assert pickle.loads(pickle.dumps(diverted)).diverted


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"flush": "never"}, "flush = 'never'; give 'sync' or 'async'"),
        ({"flush": None}, "flush = None; give"),
        ({"readable": "no"}, "readable = 'no' is not a bool"),
        ({"writable": 0}, "writable = 0 is not a bool"),
        ({"pool": 3}, "pool = 3 is not the name of a pool; give text, or 'common'"),
        ({"pool": ""}, "pool = '' is not the name of a pool"),
        ({"min_insync": 0}, "min_insync = 0"),
        ({"min_insync": 8}, "min_insync = 8"),
        ({"replication": []}, r"replication = \[\]; give 'sync' or 'async'"),
        ({"partitions": "2"}, "partitions = '2' is str; give a whole number"),
        ({"partitions": True}, "partitions = True is bool; give a whole number"),
    ],
)
def test_settings_of_a_wrong_kind_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        TopicSettings(**settings)


def test_the_flush_mode_may_be_text() -> None:
    """Brokers compare it by identity."""
    settings: Any = {"flush": "async"}
    assert TopicSettings(**settings).flush is FlushMode.ASYNC


def test_the_common_pool_may_be_named() -> None:
    """It is shown as ``common``, so that name must not be another pool."""
    assert TopicSettings(pool="common") == TopicSettings(pool=None)
    assert TopicSettings(pool="fast").pool == "fast"


@pytest.mark.parametrize(
    ("url", "places", "allowed"),
    [
        ("file:///mnt/archive", ["file:///mnt/archive"], True),
        ("file:///mnt/archive/a/", ["file:///mnt/archive/"], True),
        ("file:///mnt/archive", ["file:///mnt/archive/"], True),
        ("file:///mnt/archives", ["file:///mnt/archive"], False),
        ("file:///mnt/archive/../b", ["file:///mnt/archive"], False),
        ("s3://bucket/vq", ["s3://"], True),
        ("s3://bucket/vq", ["s3://bucket"], True),
        ("s3://bucket2/vq", ["s3://bucket"], False),
        ("s3://bucket/vq", [], False),
        ("s3://bucket/vq::http://evil", ["s3://"], False),
        ("simplecache::s3://bucket/vq", ["s3://"], False),
        ("/mnt/archive", ["file:///"], False),
        ("file:///mnt/archive", ARCHIVE_PLACES, True),
        ("s3://bucket/vq", ARCHIVE_PLACES, True),
        ("http://evil/vq", ARCHIVE_PLACES, False),
        ("sftp://evil/vq", ARCHIVE_PLACES, False),
        ("local:///mnt", ARCHIVE_PLACES, False),
    ],
)
def test_an_archive_is_opened_at_a_place_or_below(
    url: str, places: list[str], allowed: bool
) -> None:
    """Whole names count; what cannot be compared is outside."""
    if allowed:
        check_archive_place(url, places)
        return
    with pytest.raises(InvalidArgument, match=r"archive_places.*alter the topic") as caught:
        check_archive_place(url, places)
    assert url in str(caught.value)


@pytest.mark.parametrize("places", ["x", ["/mnt"], ["://a"], ["a::s3://b"], ["file:///a/.."], [5]])
def test_a_place_of_archives_is_a_url(places: object) -> None:
    with pytest.raises(InvalidArgument, match=r"archive_places: .* is not a URL"):
        check_archive_places(places)


@pytest.mark.parametrize("name", ["ack", "nack", "reject", "extend"])
def test_a_message_of_no_shared_group_says_why_it_cannot_be_settled(name: str) -> None:
    """And ``hasattr`` tells both kinds apart."""
    message = Message("t", b"x")
    with pytest.raises(NotShared, match=rf"no {name}\(\)") as raised:
        getattr(message, name)
    assert "model='shared'" in raised.value.hint
    assert not hasattr(message, name)
    assert hasattr(tuple.__new__(SharedMessage, message), name)
    assert pickle.loads(pickle.dumps(message)) == message
