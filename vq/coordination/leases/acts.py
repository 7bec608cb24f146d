"""Records of what operators did: where they are kept, read, and removed when there are too many.

Whoever acts writes them (``vq.operations.base.acts``); brokers make their parent and remove the
oldest ones.
"""

import re
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

#: Records that are kept.
ACTS_MAX: Final = 5_000


#: In place of a record that cannot be read.
_DAMAGED: Final = ActRecord(time_ms=0, who="", act="(damaged)")
_NAME: Final = re.compile(r"\d{13}-\d{6}-[0-9a-f]{6}")
#: A record of a clock that is so far ahead of a broker's is not believed.
_AHEAD_MS: Final = 86_400_000


class KnownAct(NamedTuple):
    """An act.

    Attributes:
        act: The name of its record; later ones have greater names.
        record: What was written before it.
        outcome: What was written after it; None: nothing yet.
        changed: Somebody has changed one of both since.
        problem: Why one of both cannot be read; "": they can.
    """

    act: str
    record: ActRecord
    outcome: ActOutcome | None
    changed: bool
    problem: str = ""


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

    One that is damaged, or was closed to this client, says so: whoever may write records hides no
    others by it.

    Raises:
        NotAllowed: None of these records is for this client.
    """
    assert len(acts) <= READS_PER_CALL_MAX // 2
    paths = [each for act in acts for each in (ActRecord.path(act), ActOutcome.path(act))]
    nodes = await coordinator.get_many(paths)
    known = []
    closed = [each for each in nodes[::2] if isinstance(each, NotAllowed)]
    if closed and len(closed) == len(acts):
        raise closed[0]
    for act, record, outcome in zip(acts, nodes[::2], nodes[1::2], strict=True):
        hidden = next((e for e in (record, outcome) if isinstance(e, NotAllowed)), None)
        if hidden is not None:
            known.append(KnownAct(act, _DAMAGED, None, True, hidden.message))
            continue
        if record is None or isinstance(record, NotAllowed):
            continue
        ended = None if isinstance(outcome, NotAllowed) else outcome
        changed = record.stat.version > 0 or (ended is not None and ended.stat.version > 0)
        try:
            known.append(
                KnownAct(
                    act,
                    ActRecord.decode(ActRecord.path(act), record.data),
                    None if ended is None else ActOutcome.decode(ActOutcome.path(act), ended.data),
                    changed,
                )
            )
        except Unreadable as error:
            known.append(KnownAct(act, _DAMAGED, None, changed, error.message))
    return known


def is_strange(act: str, now_ms: int) -> bool:
    """Whether a name is none of a record, or of one in the future: it would stay for ever."""
    return not _NAME.fullmatch(act) or int(act[:13]) > now_ms + _AHEAD_MS


async def forget_act(coordinator: Coordinator, act: str) -> None:
    """Remove a record."""
    for path in (ActOutcome.path(act), ActRecord.path(act)):
        try:
            await coordinator.delete(path)
        except NoNode:
            pass
