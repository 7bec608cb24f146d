"""What operators did: a place for it, a log line of each act, and an end of old records.

The records lie in ZooKeeper (``vq.coordination.leases.acts``), where those who write them may not
delete them. One node at a time, the one that makes the daily run of the archive, logs each act
and removes the oldest records: so what was done is also where operators of ZooKeeper do not write.
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
from vq.coordination.tree.coordinator import Coordinator
from vq.log_lines import get_logger

logger = get_logger(__name__)

#: How often they are looked at.
LOOK_S: Final = 30.0
_JITTER: Final = 0.1
#: A node that begins to look logs what was done since then.
_BACK_MS: Final = 120_000
#: An act without an outcome is logged as such after this time.
_OPEN_MS: Final = 60_000
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
        self._logged = ""  # the last record that has a line; later ones have greater names
        jobs.add("acts", self.look, Every(LOOK_S, _JITTER), While.REGISTERED, at_once=True)

    async def look(self) -> None:
        """Log what was done since the last look, and remove what is too old.

        Raises:
            CoordinationError: ZooKeeper does not answer.
        """
        await begin_acts(self._coordinator)
        if not self._holds():
            self._logged = ""
            return
        now_ms = self._clock.wall_ms()
        self._logged = self._logged or f"{now_ms - _BACK_MS:013d}"
        found = await list_acts(self._coordinator)
        strange = [each for each in found if is_strange(each, now_ms)]
        known = [each for each in found if each not in set(strange)]
        if strange:
            logger.warning("nodes that are no records of acts removed", nodes=len(strange))
        await self._log([each for each in known if each > self._logged], now_ms)
        old = known[: max(0, len(known) - ACTS_MAX)]
        for act in [*strange, *old][:_REMOVED_MAX]:
            await forget_act(self._coordinator, act)

    async def _log(self, acts: list[str], now_ms: int) -> None:
        for act in acts:
            for each in await read_acts(self._coordinator, [act]):
                begun = each.outcome is None and not each.problem
                if begun and each.record.time_ms > now_ms - _OPEN_MS:
                    return  # it goes on; the next look has its outcome
                _tell(each)
            self._logged = act


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
