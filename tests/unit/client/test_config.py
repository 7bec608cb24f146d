"""Settings are checked when they are made; the message shows value and bound."""

import json
import math
from typing import Any

import pytest
from support.cases import case

from vq import limits
from vq.client.config import (
    ConsumerConfig,
    MessageFactoryConfig,
    OnUnavailable,
    ProducerConfig,
    StartPosition,
    WhenFull,
    buffer_messages_of,
)
from vq.client.producer.interceptors import ProducerInterceptor
from vq.coordination.tree.values.group_terms import OnFailure, WorkingMode
from vq.errors import InvalidArgument
from vq.model import Compression, ProducerIdentity
from vq.serializers import Hessian2, Json, Serializer

TIMES = {
    MessageFactoryConfig: (
        "session_timeout_s",
        "start_timeout_s",
        "connect_timeout_s",
        "request_timeout_s",
    ),
    ProducerConfig: ("send_timeout_s", "retry_backoff_s", "retry_backoff_max_s"),
    ConsumerConfig: (
        "commit_interval_s",
        "audit_interval_s",
        "max_wait_s",
    ),
}
BOUNDS = [
    (ProducerConfig, "batch_bytes", 1, limits.BATCH_BYTES_MAX),
    (ProducerConfig, "batch_records", 1, limits.BATCH_RECORDS_MAX),
    (ProducerConfig, "window", 1, limits.PRODUCER_BATCHES_REMEMBERED),
    (ProducerConfig, "buffer_bytes", limits.MESSAGE_BYTES_MAX + 512, 16 * limits.GIB),
    (ProducerConfig, "buffer_messages", 1, 1 << 25),
    (ConsumerConfig, "prefetch_bytes", 64 * limits.KIB, limits.GIB),
    (ConsumerConfig, "buffer_bytes", limits.MIB, 64 * limits.GIB),
    (ConsumerConfig, "workers", 1, 1_000),
    (ConsumerConfig, "batch_size", 1, 50_000),
    (ConsumerConfig, "window_messages", 1, 1_000_000),
    (ConsumerConfig, "window_bytes", 64 * limits.KIB, limits.GIB),
    (ConsumerConfig, "max_attempts", 1, 1_000),
]


@pytest.mark.parametrize("serializer", [None, Json(), Hessian2()])
def test_a_serializer_is_an_object(serializer: Serializer | None) -> None:
    assert ProducerConfig(serializer=serializer).serializer is serializer


@pytest.mark.parametrize(
    ("serializer", "text"),
    [
        (Json, r"serializer = Json is a class; give an instance of it: Json\(...\)"),
        ("json", r"serializer = 'json' \(str\) has no name and no dumps and no loads"),
        (json, r"serializer = <module 'json' .* has no name: see vq.serializers"),
    ],
)
def test_what_is_no_serializer_is_refused(serializer: Any, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        ProducerConfig(serializer=serializer)


@pytest.mark.parametrize("cls", TIMES)
def test_the_defaults_are_within_the_bounds(cls: type[Any]) -> None:
    cls()


@pytest.mark.parametrize(
    ("cls", "name"), [(cls, name) for cls, names in TIMES.items() for name in names]
)
def test_times_are_positive_and_finite(cls: type[Any], name: str) -> None:
    for value in (0, -1, -0.001, math.nan, math.inf, 1e300, 1e6 + 1):
        with case(value), pytest.raises(InvalidArgument, match=name):
            cls(**{name: value})


@pytest.mark.parametrize(("cls", "name", "least", "most"), BOUNDS)
def test_numbers_have_bounds(cls: type[Any], name: str, least: int, most: int) -> None:
    for inside in (least, most):
        assert getattr(cls(**{name: inside}), name) == inside
    for outside in (least - 1, most + 1):
        with pytest.raises(InvalidArgument, match=rf"{name} = {outside} .*\[{least}, {most}\]"):
            cls(**{name: outside})


@pytest.mark.parametrize("bad", ["a/b", "x" * 201, "..", "ü", " "])
def test_names_are_names(bad: str) -> None:
    for cls, field in (
        (MessageFactoryConfig, "cluster"),
        (MessageFactoryConfig, "client_id"),
        (ConsumerConfig, "group"),
        (ConsumerConfig, "member_id"),
    ):
        with pytest.raises(InvalidArgument):
            cls(**{field: bad})  # type: ignore[arg-type]


def test_rules_between_settings() -> None:
    with pytest.raises(InvalidArgument, match="retry_backoff_max_s"):
        ProducerConfig(retry_backoff_s=2.0, retry_backoff_max_s=1.0)
    with pytest.raises(InvalidArgument, match="max_wait_s"):
        ConsumerConfig(max_wait_s=limits.LONG_POLL_S_MAX + 1)
    assert ConsumerConfig(max_wait_s=limits.LONG_POLL_S_MAX).max_wait_s == limits.LONG_POLL_S_MAX


@pytest.mark.parametrize("wrong", [-1, limits.LINGER_MS_MAX + 1, float("nan"), "5", True])
def test_a_linger_has_bounds(wrong: Any) -> None:
    with pytest.raises(InvalidArgument, match="linger_ms"):
        ProducerConfig(linger_ms=wrong)
    for good in (0, 0.5, limits.LINGER_MS_MAX):
        assert ProducerConfig(linger_ms=good).linger_ms == good


def test_settings_cannot_be_changed_afterwards() -> None:
    for cls, names in TIMES.items():
        with pytest.raises(AttributeError):
            setattr(cls(), names[0], 1.0)


def test_words_are_those_of_the_tree_and_the_command_line() -> None:
    assert [str(each) for each in StartPosition] == ["earliest", "latest"]
    assert [str(each) for each in WorkingMode] == ["orderly", "keyed", "concurrent"]


@pytest.mark.parametrize(("cls", "name"), [(cls, name) for cls, name, _, _ in BOUNDS])
def test_counts_are_whole_numbers(cls: type[Any], name: str) -> None:
    for value in ("70000", 70_000.5, None, True):
        if value is None and getattr(cls(), name) is None:
            continue  # the default: derived from another setting
        with (
            case(value),
            pytest.raises(InvalidArgument, match=f"{name} = .*give a whole number"),
        ):
            cls(**{name: value})


@pytest.mark.parametrize(
    ("cls", "name"), [(cls, name) for cls, names in TIMES.items() for name in names]
)
def test_times_are_numbers(cls: type[Any], name: str) -> None:
    with pytest.raises(InvalidArgument, match=f"{name} = '5' is str; give a number"):
        cls(**{name: "5"})


def test_a_choice_may_be_given_as_text() -> None:
    config: Any = ConsumerConfig
    made = config(on_failure="skip", start_position="latest")
    assert made.on_failure is OnFailure.SKIP
    assert made.start_position is StartPosition.LATEST


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, each) for name in ("on_failure", "mode") for each in ("nonsense", "", 1)),
        *(("start_position", each) for each in ("nonsense", None)),
        ("mode", None),
    ],
)
def test_another_choice_is_refused_with_those_there_are(name: str, value: object) -> None:
    config: Any = ConsumerConfig
    with pytest.raises(InvalidArgument, match=f"{name} = .*give '.*' or '.*'"):
        config(**{name: value})


def test_what_the_group_says_is_taken_by_those_who_say_nothing() -> None:
    made = ConsumerConfig()
    assert (made.on_failure, made.max_attempts, made.retry_backoff) == (None, None, None)


def test_the_bound_in_messages_comes_from_the_one_in_bytes() -> None:
    assert buffer_messages_of(ProducerConfig()) == 65_536
    assert buffer_messages_of(ProducerConfig(buffer_bytes=2 * limits.MIB + 1)) == 4_097
    assert buffer_messages_of(ProducerConfig(buffer_messages=7)) == 7


def test_what_a_full_buffer_does_may_be_text() -> None:
    assert ProducerConfig(when_full="raise").when_full is WhenFull.RAISE
    with pytest.raises(InvalidArgument, match="when_full = 'drop'; give 'block' or 'raise'"):
        ProducerConfig(when_full="drop")  # type: ignore[arg-type]


def test_interceptors_are_objects_of_their_class() -> None:
    one = ProducerInterceptor()
    assert ProducerConfig(interceptors=[one]).interceptors == (one,)
    for wrong, text in (
        (one, "give a tuple"),
        ((ProducerInterceptor,), r"is a class; give an instance of it: ProducerInterceptor\(...\)"),
        ((print,), "derive its class from vq.ProducerInterceptor"),
    ):
        with pytest.raises(InvalidArgument, match=text):
            ProducerConfig(interceptors=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["none", "zlib", "zstd", "lz4"])
def test_compression_is_given_as_text(kind: str) -> None:
    assert ProducerConfig(compression=kind).compression is Compression(kind)


@pytest.mark.parametrize("other", ["", "gzip", "ZSTD", 2, True])
def test_another_compression_is_refused_with_those_that_there_are(other: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"compression = .*give one of 'none', 'zlib'"):
        ProducerConfig(compression=other)


@pytest.mark.parametrize("other", [-1, limits.MESSAGE_BYTES_MAX + 1])
def test_a_threshold_has_bounds(other: int) -> None:
    for inside in (None, 0, limits.MESSAGE_BYTES_MAX):
        assert ProducerConfig(compression_threshold=inside).compression_threshold == inside
    with pytest.raises(InvalidArgument, match=rf"compression_threshold = {other} .*\[0, 1048576\]"):
        ProducerConfig(compression_threshold=other)


@pytest.mark.parametrize("other", ["64K", 1.5, True])
def test_a_threshold_is_a_whole_number(other: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"compression_threshold = .*whole number"):
        ProducerConfig(compression_threshold=other)


def test_what_happens_to_messages_of_an_unavailable_partition_is_one_of_three() -> None:
    assert ProducerConfig().on_unavailable is OnUnavailable.WAIT
    assert ProducerConfig(on_unavailable="any").on_unavailable is OnUnavailable.ANY
    with pytest.raises(InvalidArgument, match="on_unavailable = 'other'; give 'wait' or 'fail' or"):
        ProducerConfig(on_unavailable="other")  # type: ignore[arg-type]


@pytest.mark.parametrize("partitioner", [None, "hash", lambda _message, _partitions: 0])
def test_ordered_goes_with_partitioners_that_direct(partitioner: Any) -> None:
    assert ProducerConfig(ordered=True, partitioner=partitioner).ordered


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({"partitioner": "sticky"}, "ordered = True and partitioner = 'sticky'"),
        ({"partitioner": "least-stored"}, "ordered = True and partitioner = 'least-stored'"),
        ({"on_unavailable": "any"}, "ordered = True and on_unavailable = 'any'"),
        ({"ordered": "yes"}, "ordered = 'yes' is str"),
    ],
)
def test_ordered_does_not_go_with_spreading(settings: dict[str, Any], shown: str) -> None:
    with pytest.raises(InvalidArgument, match=shown):
        ProducerConfig(**{"ordered": True, **settings})


def test_a_factory_is_where_the_variables_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the command is; what the application says counts more."""
    monkeypatch.delenv("VQ_ZOOKEEPER", raising=False)
    monkeypatch.delenv("VQ_CLUSTER", raising=False)
    plain = MessageFactoryConfig()
    assert (plain.zookeeper, plain.cluster) == ("127.0.0.1:2181", "default")
    monkeypatch.setenv("VQ_ZOOKEEPER", "zk1:2181,zk2:2181")
    monkeypatch.setenv("VQ_CLUSTER", "orders")
    found = MessageFactoryConfig()
    assert (found.zookeeper, found.cluster) == ("zk1:2181,zk2:2181", "orders")
    given = MessageFactoryConfig(zookeeper="zk9:2181", cluster="mine")
    assert (given.zookeeper, given.cluster) == ("zk9:2181", "mine")
    monkeypatch.setenv("VQ_ZOOKEEPER", "nowhere")
    with pytest.raises(InvalidArgument, match="'nowhere' has no port"):
        MessageFactoryConfig()


@pytest.mark.parametrize(
    ("identity", "more", "told"),
    [
        ((7, 0), {"ordered": True}, "give vq.ProducerIdentity"),
        (ProducerIdentity(0, 0), {"ordered": True}, "identity.producer_id = 0 is outside"),
        (ProducerIdentity(2**63, 0), {"ordered": True}, "identity.producer_id = 9223372036854775"),
        (ProducerIdentity(7, 65_536), {"ordered": True}, "identity.epoch = 65536 is outside"),
        (ProducerIdentity(7, -1), {"ordered": True}, "identity.epoch = -1 is outside"),
        (ProducerIdentity(7, 0), {}, "identity needs ordered = True"),
        (ProducerIdentity(7, 0), {"ordered": True, "on_unavailable": "fail"}, "identity needs"),
    ],
)
def test_an_identity_has_bounds_and_needs_an_ordered_producer(
    identity: Any, more: dict[str, Any], told: str
) -> None:
    ProducerConfig(identity=ProducerIdentity(2**63 - 1, 65_535), ordered=True)
    with pytest.raises(InvalidArgument) as raised:
        ProducerConfig(identity=identity, **more)
    assert told in str(raised.value)
