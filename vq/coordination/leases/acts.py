"""Records of what operators did: where they are kept, read, and removed when there are too many.

Whoever acts writes them (``vq.operations.base.acts``); brokers make their parent and remove the
oldest ones.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from vq.coordination.tree.coordinator import (
    READS_PER_CALL_MAX,
    Coordinator,
    NodeExists,
    NoNode,
    NotAllowed,
    Unreadable,
)
from vq.coordination.tree.paths import ACTS
from vq.coordination.tree.reading import children_or_none
from vq.coordination.tree.values.audit import ActOutcome, ActRecord

__all__ = ["ACTS_MAX", "KnownAct", "begin_acts", "forget_act", "list_acts", "read_acts"]

#: Records that are kept.
ACTS_MAX: Final = 5_000


class KnownAct(NamedTuple):
    """An act.

    Attributes:
        act: The name of its record; later ones have greater names.
        record: What was written before it.
        outcome: What was written after it; None: nothing yet.
        changed: Somebody has changed one of both since.
    """

    act: str
    record: ActRecord
    outcome: ActOutcome | None
    changed: bool


async def begin_acts(coordinator: Coordinator) -> None:
    """Make the parent of all records: from then on acts are written down."""
    try:
        await coordinator.create(ACTS, parents=True)
    except NodeExists:
        pass


async def list_acts(coordinator: Coordinator) -> list[str]:
    """Return the names of all records, the oldest first."""
    return sorted(await children_or_none(coordinator, ACTS))


async def read_acts(coordinator: Coordinator, acts: Sequence[str]) -> list[KnownAct]:
    """Return acts, ``READS_PER_CALL_MAX // 2`` at most; those that are gone are left out.

    Raises:
        NotAllowed: Records are not for this client.
        Unreadable: One is damaged, or a newer vq wrote it.
    """
    assert len(acts) <= READS_PER_CALL_MAX // 2
    paths = [each for act in acts for each in (ActRecord.path(act), ActOutcome.path(act))]
    nodes = await coordinator.get_many(paths)
    known = []
    for act, record, outcome in zip(acts, nodes[::2], nodes[1::2], strict=True):
        for each in (record, outcome):
            if isinstance(each, NotAllowed):
                raise each
        if record is None or isinstance(record, NotAllowed):
            continue
        ended = outcome if outcome is not None and not isinstance(outcome, NotAllowed) else None
        known.append(
            KnownAct(
                act,
                ActRecord.decode(ActRecord.path(act), record.data),
                None if ended is None else ActOutcome.decode(ActOutcome.path(act), ended.data),
                record.stat.version > 0 or (ended is not None and ended.stat.version > 0),
            )
        )
    return known


async def forget_act(coordinator: Coordinator, act: str) -> KnownAct | None:
    """Remove a record; return what it was, None if it was gone or damaged."""
    try:
        found = await read_acts(coordinator, [act])
    except Unreadable:
        found = []
    for path in (ActOutcome.path(act), ActRecord.path(act)):
        try:
            await coordinator.delete(path)
        except NoNode:
            pass
    return found[0] if found else None
