"""Checking the stored bytes of one split: a run of whole blocks of one partition.

Runs on executors. It reads the master's bytes, some MiB at a time, checks them while the next ones
are read, and compares them with the bytes of the copies. Only where a copy has other bytes, both
are read once more to tell batch by batch which one is right. No reading reports damage to the
broker, and nothing is changed.
"""

import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, Protocol

from vq.admin import ContentCheck, ContentFault, FaultKind, StoredBytes
from vq.errors import (
    Busy,
    OffsetOutOfRange,
    PartitionFailed,
    PartitionQuarantined,
    PartitionRangeElsewhere,
    PermissionRefused,
    UnknownTopic,
    VqError,
)

#: What one request reads.
READ_BYTES: Final = 4 << 20
#: Bytes that cannot be read are passed in steps of so many.
STEP_BYTES: Final = 256 << 10
#: A copy that does not show yet what is committed is waited for so long.
COPY_WAIT_S: Final = 30.0


class ReadsBytes(Protocol):
    """Reads stored bytes; in practice ``vq.Admin.read_bytes``."""

    def __call__(
        self,
        topic: str,
        partition: int,
        start: int,
        *,
        max_bytes: int = ...,
        node: str | None = ...,
    ) -> StoredBytes:
        """Return bytes from ``start`` on."""
        ...


@dataclass(frozen=True, slots=True)
class Copy:
    """A node that has a copy of the bytes."""

    node: str
    address: str


@dataclass(frozen=True, slots=True)
class Split:
    """What one task checks: ``[start, end)`` of a partition, whole batches, on one broker group.

    Attributes:
        topic, partition: Of which partition.
        group, node: Whose bytes; the node is the master of the group.
        start, end: Offsets.
        copies: Nodes to compare with.
        blocks: Where blocks begin behind the first one: batches begin there, too.
    """

    topic: str
    partition: int
    group: str
    node: str
    start: int
    end: int
    copies: tuple[Copy, ...] = ()
    blocks: tuple[int, ...] = ()

    def step_from(self, position: int) -> int:
        """Return where to try again behind bytes that cannot be read: not in a later block."""
        at = bisect_right(self.blocks, position)
        stop = self.blocks[at] if at < len(self.blocks) else self.end
        return min(position + STEP_BYTES, stop)


#: Kinds of findings that say that something could not be checked.
UNKNOWN_KINDS: Final = frozenset({"unreachable", "not_readable"})


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong with ``[start, end)``.

    Attributes:
        kind: ``damaged``, ``record``, ``sequence``, ``epoch``, ``time``: see
        ``vq.admin.FaultKind``;
            ``missing``: bytes are lost; ``unreadable``: the medium does not deliver them, or their
            archive is damaged; ``differs``: a copy has other batches, which are intact;
            ``unreachable``: nothing is known of them; ``not_readable``: nor is it, since the topic
            is closed for reading; ``duplicate``: a message id is there twice;
            ``archive``: it is not what the node knows of it.
        node: Whose bytes these are; "": all of them, or it is not known.
        detail: For people.
    """

    topic: str
    partition: int
    start: int
    end: int | None
    kind: str
    node: str
    detail: str


@dataclass(slots=True)
class Checked:
    """What became of a split.

    Attributes:
        split: Which.
        parts: The ranges that were read, in order; more than one if bytes are missing between them.
        findings: What is wrong.
        read_bytes: Of the master.
        compared_bytes: Of copies.
        deleted: Bytes that retention deleted before they were read.
    """

    split: Split
    parts: list[ContentCheck] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    read_bytes: int = 0
    compared_bytes: int = 0
    deleted: int = 0


def check_split(
    split: Split,
    read: ReadsBytes,
    *,
    on_messages: Callable[[ContentCheck], None] = lambda check: None,
    monotonic: Callable[[], float] = time.monotonic,
) -> Checked:
    """Return what the bytes of a split hold.

    Args:
        split: Which bytes.
        read: Reads them.
        on_messages: Called while it goes on with a check that has new messages to be taken.
        monotonic: A clock.
    """
    checked = Checked(split)
    differing: dict[Copy, str] = {}
    with ThreadPoolExecutor(max_workers=1 + len(split.copies)) as pool:
        for check, data in _scan(split, "", read, checked, pool):
            start = check.position
            compared = {
                copy: pool.submit(_differs, split, copy, start, data, read, monotonic)
                for copy in split.copies
                if copy not in differing
            }
            check.feed(data)
            on_messages(check)
            checked.read_bytes += len(data)
            for copy, found in compared.items():
                checked.compared_bytes += len(data)
                why = found.result()
                if why:
                    differing[copy] = why
        _note_faults(checked, split.node, checked.parts)
        for copy, why in differing.items():
            _tell_difference(checked, copy, why, read, pool)
    return checked


def _scan(
    split: Split, node: str, read: ReadsBytes, checked: Checked, pool: ThreadPoolExecutor
) -> Iterator[tuple[ContentCheck, bytes]]:
    """Yield the bytes of a split, each with the check they belong to; the next are read meanwhile.

    The caller feeds the check before it goes on.
    """
    position = split.start
    check = ContentCheck(position)
    checked.parts.append(check)
    ahead: Future[StoredBytes] | None = None

    def ask(at: int) -> "Future[StoredBytes]":
        size = min(READ_BYTES, split.end - at)
        return pool.submit(
            read, split.topic, split.partition, at, max_bytes=size, node=node or None
        )

    while position < split.end:
        try:
            found = (ahead or ask(position)).result()
            if not found.data and node:
                raise Busy(f"it shows nothing from offset {position} on")
            if not found.data:
                raise PartitionQuarantined(f"it ends at offset {found.latest}, before it did")
        except UnknownTopic:
            raise
        except OffsetOutOfRange as error:
            if not _is_deleted(error, position):
                _leave(checked, check, split.end, "missing", node, error)
                return
            behind = _behind(error, position, split.end)
            checked.deleted += (behind or split.end) - check.leave()
            if behind is None:
                return
            position = behind
        except PartitionQuarantined as error:
            behind = _behind(error, position, split.end)
            _leave(checked, check, behind or split.end, "missing", node, error)
            if behind is None:
                return
            position = behind
        except PartitionFailed as error:
            position = split.step_from(position)
            check.skip(position, f"it cannot be read: {error.args[0]}")
            ahead = None
            continue
        except PartitionRangeElsewhere as error:
            _leave(checked, check, split.end, "missing", node, error)
            return
        except PermissionRefused as error:
            _leave(checked, check, split.end, "not_readable", node, error)
            return
        except VqError as error:
            _leave(checked, check, split.end, "unreachable", node, error)
            return
        else:
            position = found.next_offset
            ahead = ask(position) if position < split.end else None
            yield check, found.data
            continue
        ahead = None
        check = ContentCheck(position)
        checked.parts.append(check)
    check.finish()


def _is_deleted(error: OffsetOutOfRange, position: int) -> bool:
    """Whether retention deleted the bytes at a position: the log begins behind it."""
    earliest = error.details.get("earliest")
    return isinstance(earliest, int) and position < earliest


def _behind(error: VqError, position: int, end: int) -> int | None:
    """Return where kept bytes begin again, told by an error; None: not in the split."""
    earliest = error.details.get("earliest")
    return earliest if isinstance(earliest, int) and position < earliest < end else None


def _leave(
    checked: Checked, check: ContentCheck, end: int, kind: str, node: str, error: VqError
) -> None:
    split = checked.split
    start = check.leave()
    if start < end:
        checked.findings.append(
            Finding(
                split.topic,
                split.partition,
                start,
                end,
                kind,
                node or split.node,
                f"{type(error).__name__}: {error.args[0]}",
            )
        )


def _note_faults(checked: Checked, node: str, parts: list[ContentCheck]) -> None:
    split = checked.split
    for part in parts:
        checked.findings += [_finding(split, node, fault) for fault in part.faults]


def _finding(split: Split, node: str, fault: ContentFault) -> Finding:
    kind, detail = str(fault.kind), fault.detail
    if kind == FaultKind.DAMAGED and detail.startswith("it cannot be read"):
        kind = "unreadable"
    return Finding(split.topic, split.partition, fault.start, fault.end, kind, node, detail)


# Copies ---------------------------------------------------------------------------------------
def _differs(
    split: Split,
    copy: Copy,
    start: int,
    data: bytes,
    read: ReadsBytes,
    monotonic: Callable[[], float],
) -> str:
    """Return why a copy does not have the same bytes; "": it has."""
    position, end = start, start + len(data)
    deadline = monotonic() + COPY_WAIT_S
    while position < end:
        try:
            found = read(
                split.topic,
                split.partition,
                position,
                max_bytes=min(READ_BYTES, end - position),
                node=copy.address,
            )
        except UnknownTopic:
            raise
        except VqError as error:
            return f"{type(error).__name__}: {error.args[0]}"
        if not found.data:
            if monotonic() >= deadline:
                return f"it shows nothing from offset {position} on"
            continue  # each read of a copy waits
        if found.data != data[position - start : position - start + len(found.data)]:
            return "it has other bytes"
        position = found.next_offset
    return ""


def _tell_difference(
    checked: Checked, copy: Copy, why: str, read: ReadsBytes, pool: ThreadPoolExecutor
) -> None:
    """Read both copies once more, and note which batches of which one are not right."""
    split = checked.split
    ours = _batches(split, "", read, pool)
    theirs = _batches(split, copy.address, read, pool)
    found = theirs.findings
    for part in theirs.parts:
        found += [_finding(split, copy.node, fault) for fault in part.faults]
    found = [_named(each, copy) for each in found]
    checked.findings[:] = [
        _with_remedy(each, copy, theirs, split.node) for each in checked.findings
    ]
    our_batches = {each.start: each for part in ours.parts for each in part.batches_seen}
    their_batches = {each.start: each for part in theirs.parts for each in part.batches_seen}
    for start in sorted(our_batches.keys() & their_batches.keys()):
        mine, other = our_batches[start], their_batches[start]
        if (mine.end, mine.crc) != (other.end, other.crc):
            detail = f"the batch of {split.node} is another one; both are intact"
            found.append(
                Finding(split.topic, split.partition, start, mine.end, "differs", copy.node, detail)
            )
    deleted = 0 < theirs.deleted <= ours.deleted  # by both: retention, and the rest was compared
    if not found and not deleted and not _explained(checked, split.node):
        found.append(
            Finding(
                split.topic,
                split.partition,
                split.start,
                split.end,
                "unreachable",
                copy.node,
                f"it could not be compared with {split.node}: {why}",
            )
        )
    checked.findings += found


def _batches(split: Split, node: str, read: ReadsBytes, pool: ThreadPoolExecutor) -> Checked:
    found = Checked(split)
    for check, data in _scan(split, node, read, found, pool):
        check.keep_batches = True
        check.feed(data)
        check.take_messages()
    return found


def _named(finding: Finding, copy: Copy) -> Finding:
    return Finding(
        finding.topic,
        finding.partition,
        finding.start,
        finding.end,
        finding.kind,
        copy.node,
        finding.detail,
    )


def _with_remedy(finding: Finding, copy: Copy, theirs: Checked, master: str) -> Finding:
    """Return a finding of the master with the news that a copy has the bytes intact."""
    if finding.node != master or finding.kind not in {"damaged", "unreadable", "missing"}:
        return finding
    end = finding.end if finding.end is not None else finding.start + 1
    intact = any(
        each.start <= finding.start < each.end
        for part in theirs.parts
        for each in part.batches_seen
    )
    bad = any(
        fault.start < end and finding.start < fault.end
        for part in theirs.parts
        for fault in part.faults
    )
    if not intact or bad:
        return finding
    detail = f"{finding.detail}; {copy.node} has these bytes intact"
    return Finding(
        finding.topic, finding.partition, finding.start, finding.end, finding.kind, master, detail
    )


def _explained(checked: Checked, master: str) -> bool:
    """Whether bytes of the master are bad, so that a copy must differ."""
    return any(each.node == master for each in checked.findings)
