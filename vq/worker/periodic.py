"""Tasks that are due by themselves: one of many processes sends them, whichever holds the lease.

    leases/worker.<group>/holder   ephemeral   the process that sends
    leases/worker.<group>/times                when each task was due last; written under the lease

A task that is due is a message as any other: whoever gets it handles it, with retries and dead
letters. The holder sends it, then writes down when it was due. Its successor, when it dies between
the two, sends it once more. What was due while nobody held the lease is sent once, late, however
often it was due.
"""

import contextlib
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

from vq.blocking.factory import MessageFactory
from vq.clock import Clock
from vq.coordination.leases.leases import JobLease
from vq.coordination.tree.coordinator import Coordinator, Create, NodeExists, NoNode, Set
from vq.coordination.tree.values.leases import LeaseTimes
from vq.log_lines import get_logger
from vq.worker.schedules import schedule_of
from vq.worker.task import Task

logger = get_logger(__name__)

#: How often a process looks whether it holds the lease, and whether a clock was set; in seconds.
LOOK_S: Final = 1.0
_STOP_S: Final = 5.0
_NAMES_MAX: Final = 500


class Periodic:
    """Sends the tasks of a group that are due, while its process holds the lease, in a thread."""

    def __init__(
        self, factory: MessageFactory, group: str, tasks: Sequence[Task[Any, Any]]
    ) -> None:
        self._runtime, cluster = factory._opened()
        self._coordinator: Coordinator = cluster.coordinator
        self._clock: Clock = cluster.clock
        self._tasks = {
            each.signature: (each, schedule_of(each.every_s, each.cron)) for each in tasks
        }
        self._job = f"worker.{group}"
        self._stopped = threading.Event()
        self._times: Mapping[str, int] | None = None  # of the fence
        self._failing: set[str] = set()  # tasks that could not be sent the last time
        self._fence: int | None = None
        self._lease = JobLease(
            cluster.coordinator, cluster.clock, job=self._job, holder=cluster.config.client_id
        )
        self._runtime.call(self._lease.start)
        self._thread = threading.Thread(target=self._run, name="vq-periodic", daemon=True)
        self._thread.start()

    @classmethod
    def begin(
        cls, factory: MessageFactory, group: str, tasks: Sequence[Task[Any, Any]]
    ) -> "Periodic | None":
        """Begin to send; None: there is nothing to send."""
        return cls(factory, group, tasks) if tasks else None

    def stop(self) -> None:
        """Send no more, and leave the lease to another process."""
        self._stopped.set()
        self._thread.join(_STOP_S)
        with contextlib.suppress(Exception):  # it ends with the session otherwise
            self._runtime.run(self._lease.stop(), _STOP_S)

    def _run(self) -> None:
        while not self._stopped.wait(LOOK_S):
            try:
                self._look()
            except Exception as error:  # noqa: BLE001  ZooKeeper or a broker is away: the next look tries again
                logger.warning("sending periodic tasks failed", job=self._job, error=error)
                self._times = None

    def _look(self) -> None:
        fence = self._lease.fence
        if fence is None:
            return
        if self._times is None or fence != self._fence:
            self._times, self._fence = self._runtime.run(self._read()), fence
        times, now_ms = dict(self._times), self._clock.wall_ms()
        for name, (task, schedule) in self._tasks.items():
            last_ms = times.get(name)
            if last_ms is None or last_ms > now_ms:  # it is new, or a clock was set back
                times[name] = now_ms
                continue
            due_ms = schedule.due_ms(last_ms, now_ms)
            if due_ms is not None and self._is_sent(name, task, now_ms - due_ms):
                times[name] = due_ms
        if len(times) > _NAMES_MAX:  # of tasks that are gone; those of a later version stay
            times = {name: each for name, each in times.items() if name in self._tasks}
        if times != self._times:
            self._runtime.run(self._write(times))
            self._times = times

    def _is_sent(self, name: str, task: Task[Any, Any], late_ms: int) -> bool:
        """Send a task; False: that failed, and the next look tries again. Others go on."""
        try:
            task.send()
        except Exception as error:  # noqa: BLE001  also of a serializer of the application
            log = logger.debug if name in self._failing else logger.error
            log("periodic task cannot be sent, trying again", task=name, error=error)
            self._failing.add(name)
            return False
        logger.info("periodic task is sent", task=name, late_ms=late_ms)
        self._failing.discard(name)
        return True

    async def _read(self) -> Mapping[str, int]:
        path = LeaseTimes.path(self._job)
        try:
            return LeaseTimes.decode(path, (await self._coordinator.get(path)).data).due_ms
        except NoNode:
            return {}

    async def _write(self, times: Mapping[str, int]) -> None:
        """Write the times, if this process still holds the lease.

        Raises:
            CoordinationError: It does not, or it is not known whether they are written.
        """
        path, data = LeaseTimes.path(self._job), LeaseTimes(due_ms=times).encode()
        try:
            await self._coordinator.multi([self._lease.check(), Set(path, data, -1)])
        except NoNode:
            with contextlib.suppress(NodeExists):
                await self._coordinator.multi([self._lease.check(), Create(path, data)])
