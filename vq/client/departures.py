"""Deletes what closed consumers have in the tree, as soon as ZooKeeper takes it.

The session belongs to the factory and lives on when a consumer is closed, so nothing else would
delete its member node and its owner nodes; the other members would wait for its share. A consumer
that is closed, or fails to start, while ZooKeeper is away leaves that to a task in here.

A new session has none of the nodes of the old one, with one exception: a call whose answer was lost
may have been applied in either. So a departure also ends with one look in the new session.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

from vq.backoff import Backoff, Draws
from vq.coordination.groups import groups
from vq.coordination.groups.claims import CLAIMS_PER_MULTI, Claim, release_together
from vq.coordination.tree.coordinator import Coordinator, SessionState
from vq.log_lines import get_logger
from vq.tasks import begin_task

logger = get_logger(__name__)
#: Departures that wait for ZooKeeper; what more consumers leave goes with the session.
DEPARTURES_MAX: Final = 1_000
#: Pauses before the next try. A call without a connection waits by itself, so they are short.
_AGAIN = Backoff(first_s=0.1, most_s=1.0, jitter=0.5)


@dataclass(frozen=True, slots=True, eq=False)
class Departure:
    """A consumer that has left.

    Attributes:
        group: Its group.
        member: Its name, which a later consumer may have.
        nonce: Of its member node, which no later consumer has.
        session_id: The session that it left in; 0: there was none.
        claims: Of partitions whose owner nodes may be its own still; generation 0: of a claim that
            was interrupted.
        has_place: It may have kept its place while it waited for its name.
    """

    group: str
    member: str
    nonce: str
    session_id: int
    claims: tuple[Claim, ...] = ()
    has_place: bool = False


class Departures:
    """The departures of one factory's consumers. Loop-bound.

    Attributes:
        tasks: Those under way.
    """

    def __init__(self, coordinator: Coordinator, rng: Draws) -> None:
        self._coordinator = coordinator
        self._rng = rng
        self.tasks: dict[Departure, asyncio.Task[None]] = {}

    def begin(self, departure: Departure) -> None:
        """Delete what the consumer has, now or when ZooKeeper is back."""
        if len(self.tasks) >= DEPARTURES_MAX:
            logger.error(
                "too many consumers were closed without ZooKeeper, their partitions stay without a "
                "reader until the session ends",
                group=departure.group,
                member=departure.member,
                limit=DEPARTURES_MAX,
            )
            return
        task = begin_task(self._run(departure))
        self.tasks[departure] = task
        task.add_done_callback(lambda _: self.tasks.pop(departure))

    async def wait(self, group: str, member: str, timeout_s: float) -> bool:
        """Return once no departure of this name is under way; False: not within the time."""
        tasks = [
            task
            for each, task in self.tasks.items()
            if (each.group, each.member) == (group, member)
        ]
        if not tasks:
            return True
        _, pending = await asyncio.wait(tasks, timeout=timeout_s)
        return not pending

    async def close(self) -> None:
        """End all of them: what is left goes with the session."""
        tasks = list(self.tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, departure: Departure) -> None:
        failures = 0
        while self._coordinator.state is not SessionState.CLOSED:
            try:
                await self._delete(departure)
                return
            except Exception as error:  # noqa: BLE001 - a task's outer edge
                failures += 1
                logger.info(
                    "nodes of a closed consumer cannot be deleted, trying again",
                    group=departure.group,
                    member=departure.member,
                    error=error,
                )
            await asyncio.sleep(_AGAIN.pause_s(failures, self._rng))

    async def _delete(self, departure: Departure) -> None:
        """Release the partitions, then delete the member node: its name is free from then on."""
        await self._coordinator.sync()  # a server that is behind may not show our last write
        claims = departure.claims
        if departure.session_id != self._coordinator.session_id:
            claims = tuple(each for each in claims if each.generation == 0)
        errors = []
        for start in range(0, len(claims), CLAIMS_PER_MULTI):
            step = claims[start : start + CLAIMS_PER_MULTI]
            errors += await release_together(self._coordinator, step)
        for error in errors:
            if error is not None:
                raise error
        group, member, nonce = departure.group, departure.member, departure.nonce
        if departure.has_place:
            session_id = self._coordinator.session_id
            await groups.drop_place(self._coordinator, group, member, nonce, session_id)
        await groups.leave_group(self._coordinator, group, member, nonce)
