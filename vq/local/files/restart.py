"""What a restart of a local queue finds: the snapshot, and what the logs and pads say since."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from vq.local.files.lane_reader import LaneReader
from vq.local.files.lanes import NOTES
from vq.local.files.notes import (
    Aside,
    LaneSnapshot,
    OpenRange,
    Range,
    Snapshot,
    decode_note,
    lane_and_number,
    merged,
    without,
)
from vq.local.files.pad import CodePad, Given, given_in, given_of
from vq.local.items import IDEMPOTENCY_HEADER, LANE_TOPIC, LATER
from vq.model import TopicPartition, time_ms_of
from vq.store.records.record import Record, decode_properties

_IDEMPOTENCY: Final = IDEMPOTENCY_HEADER.encode()


class StorageState(NamedTuple):
    """What a restart found.

    Attributes:
        lanes: How far each lane was read, and what of it is open.
        asides: What waits for its time.
        keys: Idempotency keys with the time of their put, in ms since 1970, in rising order.
        given: How messages were handed out that are not completed, by their codes.
    """

    lanes: list[LaneSnapshot]
    asides: list[Aside]
    keys: list[tuple[str, int]]
    given: dict[int, Given]


def restart(
    snapshot: Snapshot, reader: LaneReader, ends: Sequence[int], pad: CodePad, given: CodePad
) -> StorageState:
    """Return what is open: the snapshot, and what the logs and the pads say since.

    Args:
        snapshot: The last one.
        reader: Of the logs.
        ends: The number of the message that is put next, by lane.
        pad, given: What a killed process did not forget; what is not open any more is taken out.
    """
    done: list[list[Range]] = [[] for _ in range(LATER + 1)]
    for _, record in reader.scan(NOTES, snapshot.notes, 0):
        for lane, numbers in decode_note(record.payload):
            done[lane].append(numbers)
    later: list[Aside] = []
    keys = dict(snapshot.keys)
    for number, record in reader.scan(LATER, snapshot.later_offset, snapshot.later_number):
        aside, moved = _aside_of(number, record)
        later.append(aside)
        if moved is not None:
            done[moved[0]].append((moved[1], moved[1] + 1))
        _note_key(record, keys)
    for lane, was in enumerate(snapshot.lanes):
        for record in reader.keyed(lane, was.end):
            _note_key(record, keys)
    given_anew = set()  # a damaged end was cut off: other messages get these numbers
    for code in pad.codes():
        lane, number = lane_and_number(code)
        done[lane].append((number, number + 1))
        if number >= ends[lane]:
            given_anew.add(code)
    if given_anew:
        pad.forget(given_anew)
    for lane, ranges in enumerate(done):
        last = ends[lane]
        done[lane] = [(start, min(end, last)) for start, end in ranges if start < last]
    lanes, asides = restored(snapshot, done, later)
    in_hand = _in_hand(given, lanes, asides, ends)
    given.keep([given_of(code, *each) for code, each in in_hand.items()])
    keys_by_time = sorted(keys.items(), key=lambda each: each[1])
    return StorageState(lanes, asides, keys_by_time, in_hand)


def _in_hand(
    pad: CodePad, lanes: Sequence[LaneSnapshot], asides: Iterable[Aside], ends: Sequence[int]
) -> dict[int, Given]:
    """Return how messages were handed out that are open."""
    waiting = {each.number for each in asides}
    found = {}
    for code, given in given_in(pad.codes()).items():
        lane, number = lane_and_number(code)
        is_open = number in waiting if lane == LATER else lanes[lane].is_open(number)
        if is_open and number < ends[lane]:
            found[code] = given
    return found


def restored(
    snapshot: Snapshot, done: Sequence[Iterable[Range]], later: Iterable[Aside]
) -> tuple[list[LaneSnapshot], list[Aside]]:
    """Return lanes and asides after a restart.

    Args:
        snapshot: The last one.
        done: What was completed since, by lane.
        later: What came into the lane ``LATER`` since.
    """
    gone = [merged(each) for each in done]
    lanes = []
    for lane, was in enumerate(snapshot.lanes):
        following = was.next_number
        opened = [
            OpenRange(start, end, each.offset, each.start)
            for each in was.opened
            for start, end in without((each.start, each.end), gone[lane])
        ]
        behind = [(max(start, following), end) for start, end in gone[lane] if end > following]
        lanes.append(
            LaneSnapshot(
                following, was.next_offset, opened, merged([*was.skipped, *behind]), was.end
            )
        )
    asides = {each.number: each for each in [*snapshot.asides, *later]}
    for start, end in gone[LATER]:
        if end - start > len(asides):
            asides = {n: each for n, each in asides.items() if not start <= n < end}
        else:
            for number in range(start, end):
                asides.pop(number, None)
    return lanes, list(asides.values())


def _moved_from(origin: str) -> tuple[int, int] | None:
    """Return lane and number in the origin of a copy; None: it is no copy."""
    if not origin:
        return None
    lane, _, number = origin.removeprefix(f"{LANE_TOPIC}-").partition("@")
    return int(lane), int(number)


def _aside_of(number: int, record: Record) -> tuple[Aside, tuple[int, int] | None]:
    """Return what a record of ``later`` says, and of a copy the lane and number of its message."""
    found = decode_properties(record.properties or b"")
    to = found.destination or TopicPartition(LANE_TOPIC, 0)
    aside = Aside(
        found.delivery_time_ms, number, record.offset, to.partition, found.retry_count, record.id
    )
    return aside, _moved_from(found.origin)


def _note_key(record: Record, keys: dict[str, int]) -> None:
    if record.properties is not None and _IDEMPOTENCY in record.properties:
        properties = decode_properties(record.properties)
        key = properties.headers.get(IDEMPOTENCY_HEADER)
        if key is not None and not properties.origin:
            keys[key] = time_ms_of(record.id)
