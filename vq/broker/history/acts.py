"""What operators did: a place for it, a log line of each act, and an end of old records.

The records lie in ZooKeeper (``vq.coordination.leases.acts``), where those who write them may not
delete them. One node at a time, the one that makes the daily run of the archive, logs each act
and removes the oldest records: so what was done is also where operators of ZooKeeper do not write.

Names of records have the time of the operator's machine, which may be any. So the node remembers
which records have a line, and no record is removed before it has one.
"""

from collections.abc import Callable
from typing import Final

from vq.broker.base.jobs import Every, Jobs, While
from vq.clock import Clock
from vq.coordination.leases.acts import (
    ACTS_MAX,
    KnownAct,
    begin_acts,
    forget_act,
    is_strange,
    list_acts,
    read_acts,
)
from vq.coordination.tree.coordinator import Coordinator, NotAllowed
from vq.log_lines import get_logger

logger = get_logger(__name__)

#: How often they are looked at.
LOOK_S: Final = 30.0
_JITTER: Final = 0.1
#: A node that begins to look logs what was done since then, by the names of the records.
_BACK_MS: Final = 120_000
#: An act without an outcome is logged as such so long after it was seen first.
_OPEN_S: Final = 60.0
#: Records that one look removes.
_REMOVED_MAX: Final = 500


class ActKeeper:
    """See the module's text. Loop-bound.

    Args:
        jobs: Has this done.
        coordinator: Where the records are.
        clock: Tells the time.
        holds: Returns whether this node is the one that logs and removes.
    """

    def __init__(
        self, jobs: Jobs, coordinator: Coordinator, clock: Clock, holds: Callable[[], bool]
    ) -> None:
        self._coordinator = coordinator
        self._clock = clock
        self._holds = holds
        self._logged: set[str] | None = None  # the records that have a line; None: it did not look
        self._open: dict[str, float] = {}  # those that may go on: when each was seen first
        jobs.add("acts", self.look, Every(LOOK_S, _JITTER), While.REGISTERED, at_once=True)

    async def look(self) -> None:
        """Log what was done since the last look, and remove what is too old.

        Raises:
            CoordinationError: ZooKeeper does not answer.
        """
        await begin_acts(self._coordinator)
        if not self._holds():
            self._logged = None
            self._open.clear()
            return
        now_ms = self._clock.wall_ms()
        found = await list_acts(self._coordinator)
        if self._logged is None:
            self._logged = {each for each in found if each < f"{now_ms - _BACK_MS:013d}"}
        logged = self._logged
        await self._log([each for each in found if each not in logged], logged)
        logged.intersection_update(found)
        strange = [each for each in found if each in logged and is_strange(each, now_ms)]
        known = [each for each in found if not is_strange(each, now_ms)]
        if strange:
            logger.warning("nodes that are no records of acts removed", nodes=len(strange))
        old = [each for each in known[: max(0, len(known) - ACTS_MAX)] if each in logged]
        for act in [*strange, *old][:_REMOVED_MAX]:
            await forget_act(self._coordinator, act)

    async def _log(self, acts: list[str], logged: set[str]) -> None:
        now_s = self._clock.monotonic()
        self._open = {act: self._open.get(act, now_s) for act in acts}
        for act in acts:
            for each in await _read(self._coordinator, act):
                begun = each.outcome is None and not each.problem
                if begun and now_s - self._open[act] < _OPEN_S:
                    break  # it goes on; a later look has its outcome
                _tell(each)
            else:
                logged.add(act)


async def _read(coordinator: Coordinator, act: str) -> list[KnownAct]:
    """Return a record; none if it is gone, or somebody has closed it to brokers, which is told."""
    try:
        return await read_acts(coordinator, [act])
    except NotAllowed as error:
        logger.warning("record of an act cannot be read", record=act, error=error)
        return []


def _tell(known: KnownAct) -> None:
    record, outcome = known.record, known.outcome
    logger.info(
        "act of an operator",
        record=known.act,
        act=record.act,
        subject=record.subject,
        who=record.who,
        user=record.user,
        identity=record.identity,
        person=record.person,
        arguments=record.arguments,
        outcome="begun" if outcome is None else outcome.outcome,
        error=known.problem or ("" if outcome is None else outcome.error),
        changed=known.changed,
    )
