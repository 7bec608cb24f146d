"""Checks of half messages: a producer with a listener waits at each journal for what is due.

    a request waits at the master of each partition of the journal
        └──▶ half messages of its group ──▶ check of the listener ──▶ the decision is sent
                                                └──▶ unknown, raised, late: nothing is sent

A line for each partition has one request waiting. A few calls of the listener run at a time, and
one that hangs gives its place up after its time.
"""

import asyncio
import contextlib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from vq import limits
from vq.backoff import Backoff
from vq.client.asking import ask_master, master_of
from vq.client.blocking_calls import BlockingCalls
from vq.client.cluster import ClusterClient
from vq.client.config import ProducerConfig
from vq.client.loop_calls import call_soon
from vq.client.producer.transaction.half import resolution_of
from vq.client.producer.transaction.waiting import waiting_messages
from vq.client.producer.transaction_listener import COMMIT, UNKNOWN, TransactionResolution
from vq.client.raised import forget_locals
from vq.errors import TransactionRefused, UnknownTopic, VqError
from vq.log_lines import get_logger
from vq.model import TopicPartition, TransactionState
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import (
    CheckedTransaction,
    CheckRequest,
    TransactionChecks,
    TransactRequest,
)
from vq.reserved import TRANSACTIONS_TOPIC
from vq.tasks import begin_task, cancellation_of

logger = get_logger(__name__)

#: How long a request waits at a master, in seconds.
WAIT_S: Final = 20.0
_PAUSE: Final = Backoff(first_s=0.1, most_s=10.0, jitter=0.5)
#: Between looks for a journal, if there is none; and after an answer that came too soon, empty.
LOOK_S: Final = 30.0
SOON_S: Final = 1.0
#: Calls of a listener at a time; and threads, of which those above hang.
CALLS_MAX: Final = 8
THREADS_MAX: Final = 32
#: How long a producer that closes waits for its checks, and for each master to hear of it.
CLOSE_S: Final = 5.0
LEAVE_S: Final = 1.0
#: Between two lines in the log about the same.
LOG_EVERY_S: Final = 10.0


class ListenerCalls(ABC):
    """Calls a listener, for a bounded time. Loop-bound."""

    @abstractmethod
    async def run(self, call: Callable[[], Any]) -> object:
        """Return what a call returns, or raise what it raises.

        Raises:
            TimeoutError: It takes too long; it no longer keeps others from being called.
        """

    def close(self) -> None:  # noqa: B027  most have nothing to close
        """Make no more calls."""


class LoopCalls(ListenerCalls):
    """Calls it on the loop, and awaits it.

    Args:
        timeout_s: How long.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    async def run(self, call: Callable[[], Any]) -> object:
        """See ``ListenerCalls``."""
        answer = call()
        if not inspect.isawaitable(answer):
            return answer
        task = asyncio.ensure_future(answer)
        try:
            await asyncio.wait([task], timeout=self._timeout_s)
            if not task.done():
                raise TimeoutError
            return task.result()
        finally:
            task.cancel()


class ThreadCalls(ListenerCalls):
    """Calls it in threads; one that hangs keeps its thread, and not the others.

    Args:
        timeout_s: How long.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._calls = BlockingCalls(THREADS_MAX, "vq-check")
        self._loop = asyncio.get_running_loop()
        self._threads = 0  # that are inside a call
        self._ended = asyncio.Event()

    async def run(self, call: Callable[[], Any]) -> object:
        """See ``ListenerCalls``; while too many hang it waits."""
        if self._threads >= THREADS_MAX:
            logger.error(
                "checks hang in all threads, none is called until one returns",
                threads=self._threads,
            )
        while self._threads >= THREADS_MAX:
            self._ended.clear()
            await self._ended.wait()
        self._threads += 1
        try:
            returned, raised = await self._calls.run(partial(self._called, call), self._timeout_s)
        except TimeoutError:  # its thread goes on
            raise
        except OSError:  # the process may have no more threads
            self._threads -= 1
            raise
        if raised is not None:
            raise CheckRaised from raised
        return returned

    def _called(self, call: Callable[[], Any]) -> tuple[object, BaseException | None]:
        """Make a call, in a thread: what it raises ends neither that nor the loop."""
        try:
            return call(), None
        except BaseException as error:  # noqa: BLE001  the user's code raises anything
            return None, error
        finally:
            call_soon(self._loop, self._one_ended)

    def _one_ended(self) -> None:
        self._threads -= 1
        self._ended.set()

    def close(self) -> None:
        """See ``ListenerCalls``."""
        self._calls.close()


class CheckRaised(Exception):
    """A check in a thread has raised its cause."""


class ProducerChecks:
    """See the module. Loop-bound.

    Args:
        cluster: Its routes say who has the journals.
        config: Of the producer; it has a listener.
        calls: Calls that.
    """

    def __init__(
        self, cluster: ClusterClient, config: ProducerConfig, calls: ListenerCalls
    ) -> None:
        assert config.transaction_listener is not None
        self._cluster = cluster
        self._config = config
        self._group = config.producer_group or ""
        self._check = config.transaction_listener.check
        self._calls = calls
        self._instance = cluster.rng.getrandbits(63) | 1
        self._by = f"check by {cluster.config.client_id}"[: limits.NAME_CHARS_MAX]
        self._slots = asyncio.Semaphore(CALLS_MAX)
        self._hint = asyncio.Event()
        self._lines: list[asyncio.Task[None]] = []
        self._running: set[asyncio.Task[None]] = set()
        self._waits_at: dict[TopicPartition, None] = {}
        self._spare = _Sparing(cluster)
        self._main = begin_task(self._run(), cluster.context)

    def look_soon(self) -> None:
        """Look for the journals now: there are some, since a half message was sent."""
        self._hint.set()

    def stop(self) -> None:
        """End all of it at once: the loop ends."""
        for task in (self._main, *self._lines, *self._running):
            task.cancel()
        self._calls.close()

    async def close(self) -> None:
        """Ask for no more; wait for what runs, for some seconds."""
        waits_at = list(self._waits_at)
        for task in (self._main, *self._lines):
            task.cancel()
        await asyncio.gather(*map(self._leave, waits_at))
        if self._running:
            await asyncio.wait(list(self._running), timeout=CLOSE_S)
        self.stop()

    async def _leave(self, journal: TopicPartition) -> None:
        """Have no request of this producer wait at a master."""
        with contextlib.suppress(VqError):
            await self._request(journal, 0, 0.0, LEAVE_S)

    # The lines ------------------------------------------------------------------------------------
    async def _run(self) -> None:
        count = 0
        while not count:
            self._hint.clear()
            try:
                routes = await self._cluster.track(TRANSACTIONS_TOPIC)
                count = len(routes.topic(TRANSACTIONS_TOPIC).partitions)
            except UnknownTopic:
                pass  # nobody has sent a half message yet
            except VqError as error:
                logger.debug("journals of transactions cannot be found", error=error)
            if not count:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await self._hint.wait()
        for number in range(count):
            journal = TopicPartition(TRANSACTIONS_TOPIC, number)
            self._lines.append(begin_task(self._line(journal), self._cluster.context))

    async def _line(self, journal: TopicPartition) -> None:
        """Have one request wait at the master of a journal, again and again."""
        clock, failures = self._cluster.clock, 0
        mine: set[asyncio.Task[None]] = set()
        while True:
            while len(mine) >= limits.CHECKS_PER_ANSWER_MAX:
                await asyncio.wait(mine, return_when=asyncio.FIRST_COMPLETED)
            begun = clock.monotonic()
            try:
                room = limits.CHECKS_PER_ANSWER_MAX - len(mine)
                bound_s = WAIT_S + self._cluster.config.request_timeout_s
                self._waits_at[journal] = None
                found = await self._request(journal, room, WAIT_S, bound_s)
                failures = 0
            except VqError as error:
                failures += 1
                self._cluster.refresh(TRANSACTIONS_TOPIC, error)
                logger.debug("no checks from a journal", journal=journal, error=error)
                await asyncio.sleep(_PAUSE.pause_s(failures, self._cluster.rng))
                continue
            finally:
                self._waits_at.pop(journal, None)
            for told, body in found:
                task = begin_task(self._answer(journal, told, body), self._cluster.context)
                for tasks in (mine, self._running):
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
            if not found and clock.monotonic() - begun < WAIT_S / 2:
                await asyncio.sleep(SOON_S)

    async def _request(
        self, journal: TopicPartition, count: int, wait_s: float, bound_s: float
    ) -> list[tuple[CheckedTransaction, bytes]]:
        """Return the half messages that a master has answered with, and their records.

        Raises:
            VqError: It has not answered, or refuses.
        """
        address, epoch = master_of(self._cluster, journal)
        request = CheckRequest(
            topic=journal.topic,
            partition=journal.partition,
            epoch=epoch,
            group=self._group,
            instance=self._instance,
            max_wait_ms=int(wait_s * 1_000),
            max_count=count,
        )
        answer, body = await self._cluster.request(address, Command.CHECK, request, timeout=bound_s)
        found, at = [], 0
        for each in answer.transactions:
            size = sum(part.size for part in each.parts)
            found.append((each, body[at : at + size]))
            at += size
        return found

    # One check ------------------------------------------------------------------------------------
    async def _answer(self, journal: TopicPartition, told: CheckedTransaction, body: bytes) -> None:
        """Ask the listener, and tell the master what it says."""
        number = told.transaction
        async with self._slots:
            resolution = await self._ask(told, body)
        if resolution is UNKNOWN:
            return  # the master asks again, here or elsewhere
        state = TransactionState.ROLLED_BACK
        if resolution is COMMIT:
            state = TransactionState.COMMITTED
        request = TransactRequest(
            topic=journal.topic,
            partition=journal.partition,
            transaction=number,
            state=int(state),
            by=self._by,
            checks=TransactionChecks(group=self._group),
        )
        deadline = self._cluster.clock.monotonic() + self._config.send_timeout_s
        what = f"whether transaction {number} is {state.word}"
        try:
            await ask_master(
                self._cluster, journal, Command.TRANSACT, request, deadline=deadline, what=what
            )
        except TransactionRefused as error:
            unlogged = self._spare.turn("late")
            if unlogged is not None:
                logger.warning(
                    "a check was answered too late, it was decided otherwise",
                    transaction=number,
                    answer=resolution.value,
                    error=error,
                    unlogged=unlogged,
                )
        except VqError as error:
            unlogged = self._spare.turn("not taken")
            if unlogged is not None:
                logger.warning(
                    "the answer of a check was not taken, it is asked again",
                    transaction=number,
                    answer=resolution.value,
                    error=error,
                    unlogged=unlogged,
                )

    async def _ask(self, told: CheckedTransaction, body: bytes) -> TransactionResolution:
        why: BaseException | None = None
        try:
            messages = waiting_messages(told.parts, body)
            given = messages if told.many else messages[0]
            return resolution_of(await self._calls.run(partial(self._check, given)), "check")
        except CheckRaised as error:
            why = error.__cause__
        except asyncio.CancelledError as error:
            if cancellation_of(error) is not None:
                raise
            why = error
        except Exception as error:  # noqa: BLE001  the user's code raises anything
            why = error
        unlogged = self._spare.turn("failed")
        if unlogged is not None:
            logger.warning(
                "check failed, others go on and this one is asked again",
                transaction=told.transaction,
                check=told.check,
                producer_group=self._group,
                late_s=self._config.check_timeout_s if isinstance(why, TimeoutError) else None,
                unlogged=unlogged,
                exc_info=why,
            )
        if why is not None:
            forget_locals(why)
        return UNKNOWN


class _Sparing:
    """Says whether one more line about something is logged: every ten seconds at most."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._now = cluster.clock.monotonic
        self._next: dict[str, tuple[float, int]] = {}

    def turn(self, what: str) -> int | None:
        """Return how many were not logged since the last line; None: this one is not, either."""
        next_at, more = self._next.get(what, (0.0, 0))
        if self._now() < next_at:
            self._next[what] = next_at, more + 1
            return None
        self._next[what] = self._now() + LOG_EVERY_S, 0
        return more
