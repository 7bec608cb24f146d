"""What requests of shared groups may say, and what is answered. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from vq import limits
from vq.broker.shared.ledger import (
    Now,
    ReceiveAsk,
    SharedGroup,
    SharedSource,
    Told,
    ToldKeys,
)
from vq.broker.shared.notes import Settlement, SettlementKind, SourceKey
from vq.errors import InvalidRequest
from vq.remoting import wire_pb2 as wire
from vq.shown import shown

#: Numbers of messages, and how many follow each other.
_NUMBER_MAX = 2**63 - 1
_RUN_MAX = 2**31 - 1


def ask_of(request: wire.ReceiveRequest) -> ReceiveAsk:
    """Return what a RECEIVE asks.

    Raises:
        InvalidRequest: It says what it must not.
    """
    sources = sources_of(request)
    _check_member(request.member)
    for name, value, least, most in (
        ("attempt", request.attempt, 1 if request.max_messages else 0, _NUMBER_MAX),
        ("max_messages", request.max_messages, 0, limits.SHARED_MESSAGES_PER_RECEIVE_MAX),
        ("lease_ms", request.lease_ms, limits.SHARED_LEASE_MS_MIN, limits.SHARED_LEASE_MS_MAX),
        (
            "open_max",
            request.open_max,
            1,
            limits.SHARED_KEYED_OPEN_MAX if request.keyed else limits.SHARED_OPEN_MAX,
        ),
        ("group_open_max", request.group_open_max, 1, limits.SHARED_GROUP_OPEN_MAX),
    ):
        _check_bounds(name, value, least, most)
    for each in request.sources:
        _check_bounds("end", each.end, 0, _NUMBER_MAX)
        _check_bounds("begin", each.begin, 0, each.end)
        _check_bounds("cut_at", each.cut_at, 0, _NUMBER_MAX if each.was_cut else 0)
    return ReceiveAsk(
        request.member,
        request.attempt,
        request.max_messages,
        request.lease_ms,
        request.open_max,
        request.group_open_max,
        tuple(
            Told(key, each.begin, each.end, each.cut_at if each.was_cut else None, each.cuts)
            for key, each in zip(sources, request.sources, strict=True)
        ),
        request.keyed,
    )


def keys_of(request: wire.ReceiveRequest) -> list[ToldKeys]:
    """Return what a RECEIVE tells of the keys of messages.

    Raises:
        InvalidRequest: It says what it must not.
    """
    sources = sources_of(request)
    _check_bounds(
        "messages whose keys are told",
        sum(len(each.keys) for each in request.keys),
        0,
        limits.SHARED_MESSAGES_PER_RECEIVE_MAX,
    )
    for each in request.keys:
        _check_bounds("source", each.source, 0, len(sources) - 1)
        _check_bounds("grant", each.grant, 1, _NUMBER_MAX)
        _check_bounds("keys", len(each.keys), 1, limits.SHARED_MESSAGES_PER_RECEIVE_MAX)
        _check_bounds("first", each.first, 0, _NUMBER_MAX - len(each.keys))
    for before, each in pairwise(sorted(request.keys, key=lambda each: (each.source, each.first))):
        if before.source == each.source and before.first + len(before.keys) > each.first:
            raise InvalidRequest(f"the key of message {each.first} comes twice in one request")
    return [
        ToldKeys(sources[each.source], each.first, each.grant, tuple(each.keys))
        for each in request.keys
    ]


def sources_of(request: wire.ReceiveRequest | wire.SettleRequest) -> list[SourceKey]:
    """Return the partitions that a request names.

    Raises:
        InvalidRequest: It says what it must not.
    """
    check_group(request.group)
    _check_bounds("sources", len(request.sources), 1, limits.SHARED_SOURCES_PER_REQUEST_MAX)
    sources = [SourceKey(each.topic, each.partition, each.topic_id) for each in request.sources]
    for each in sources:
        if not limits.is_valid_name(each.topic) or not limits.is_topic_id(each.topic_id):
            raise InvalidRequest(f"{shown(each.topic)} is no name of a topic, or its id is none")
        _check_bounds("partition", each.partition, 0, limits.PARTITIONS_PER_TOPIC_MAX - 1)
    if len(set(sources)) < len(sources):
        raise InvalidRequest("a partition comes twice in one request")
    return sources


def settlements_of(request: wire.SettleRequest) -> list[Settlement]:
    """Return what a SETTLE says of the messages of its partitions.

    Raises:
        InvalidRequest: It says what it must not.
    """
    _check_member(request.member)
    _check_bounds("sequence", request.sequence, 0, _NUMBER_MAX)
    _check_bounds("items", len(request.items), 1, limits.SHARED_RUNS_PER_SETTLE_MAX)
    found = [_settlement_of(each, len(request.sources)) for each in request.items]
    in_order = sorted(found)
    for before, each in pairwise(in_order):
        if before.source == each.source and before.first + before.messages > each.first:
            raise InvalidRequest(f"message {each.first} comes twice in one request")
    return found


def _settlement_of(item: wire.SettleItem, sources: int) -> Settlement:
    run = item.run
    try:
        kind = SettlementKind(item.kind)
    except ValueError:
        raise InvalidRequest(f"{item.kind} is no kind of a settlement") from None
    _check_bounds("source", run.source, 0, sources - 1)
    _check_bounds("messages", run.messages, 1, _RUN_MAX)
    _check_bounds("first", run.first, 0, _NUMBER_MAX - run.messages)
    _check_bounds("grant", run.grant, 1, _NUMBER_MAX)
    if kind is SettlementKind.EXTEND:
        least, most = limits.SHARED_LEASE_MS_MIN, limits.SHARED_LEASE_MS_MAX
        _check_bounds("time_ms of a lease", item.time_ms, least, most)
    elif kind in {SettlementKind.RELEASE, SettlementKind.UNUSED}:
        _check_bounds("time_ms of a delay", item.time_ms, 0, limits.DELAY_S_MAX * 1_000)
    else:
        _check_bounds(f"time_ms of {kind.name}", item.time_ms, 0, 0)
    return Settlement(run.source, run.first, run.messages, run.grant, kind, item.time_ms)


def check_group(group: str) -> None:
    """Return if that may be a group.

    Raises:
        InvalidRequest: It may not.
    """
    if not limits.is_valid_name(group):
        raise InvalidRequest(f"{shown(group)} is no name of a group")


def _check_member(member: int) -> None:
    if not member:
        raise InvalidRequest("member is 0; draw a number that is not")


def _check_bounds(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidRequest(f"{name} = {value} of a shared group is outside [{least}, {most}]")


def lows_of(group: SharedGroup, sources: Iterable[SourceKey]) -> list[int]:
    """Return the lowest message of each partition that is not done; 0: the group has none of it."""
    found: Mapping[SourceKey, SharedSource] = group.sources
    return [found[each].low if each in found else 0 for each in sources]


def cuts_of(group: SharedGroup, told: Iterable[Told]) -> list[wire.SharedCut]:
    """Return what members must know of partitions that have lost their end, or may have."""
    found = ((index, each.end, group.sources.get(each.source)) for index, each in enumerate(told))
    return [
        wire.SharedCut(source=index, cursor=source.cursor, cuts=source.cuts)
        for index, end, source in found
        if source is not None and (source.cuts or end < source.cursor)
    ]


def status_of(key: SourceKey, source: SharedSource, now: Now) -> wire.SharedSourceStatus:
    """Return what is told of a partition of a group."""
    runs: Sequence[Any] = source.runs
    return wire.SharedSourceStatus(
        topic=key.topic,
        partition=key.partition,
        topic_id=key.topic_id,
        low=source.low,
        cursor=source.cursor,
        open=source.open,
        held=sum(each.end - each.first for each in runs if each.is_held(now)),
        waiting=sum(
            each.end - each.first for each in runs if not each.grant and each.until_ms > now.ms
        ),
        runs=len(runs),
        deliveries_max=max((each.deliveries for each in runs), default=0),
        redelivered=sum(each.end - each.first for each in runs if each.deliveries > 1),
    )
