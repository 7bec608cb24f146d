"""The topics in ZooKeeper, kept up to date: watches say when to read, reads say what is there.

In here: when to read what. Not in here: what the broker does about it (``partitions``).

Topics are read again when a watch fired for them, when the connection ended
(``coordination.tree.mirror``), when somebody asks for a topic that is not known, a while after one
could not be followed, and every ``interval_s`` in any case. What is read of a known topic is what
changed, and a topic that comes or goes has no other one read.

At these audits, and after a read failed, the counts of open partitions are corrected
(``open_counts``).
"""

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from typing import Final, NamedTuple, Protocol

from vq.broker.base.lookups import Lookup, Lookups, Then
from vq.coordination.brokers.open_counts import OpenCount, correct_counts, read_counts
from vq.coordination.brokers.registry import group_names
from vq.coordination.tree.coordinator import (
    ConnectionLost,
    Coordinator,
    NoNode,
    SessionExpired,
    Watch,
)
from vq.coordination.tree.mirror import Mirror
from vq.coordination.tree.paths import TOPICS
from vq.coordination.tree.reading import TopicView, read_topic
from vq.coordination.tree.values.topics import DELETING, IN_GRACE, READY, TopicNode
from vq.errors import Busy, CoordinationError, DiskFull, InternalError, UnknownTopic, VqError
from vq.log_lines import get_logger
from vq.store.log.block import FULL_ERRNOS
from vq.tasks import in_turns

logger = get_logger(__name__)

#: Pause after a read of ZooKeeper failed.
RETRY_S = 1.0
#: Pause after a topic could not be followed: a full disk, damage, a bug. The others go on.
PROBLEM_RETRY_S = 5.0
#: Reads asked for by requests of clients are at least so far apart ...
ASKED_INTERVAL_S = 0.1
#: ... and each is of so many topics at most: whoever asks next waits for no more than these.
ASKED_AT_ONCE_MAX: Final = 256
#: Requests that waited for such a read, answered in one turn of the loop.
ANSWERS_PER_TURN: Final = 32

#: Topics that could not be followed, listed by STATUS; further ones are counted.
PROBLEMS_TOLD_MAX: Final = 20
#: Characters told of one of them: a path may have 4096.
PROBLEM_CHARACTERS_MAX: Final = 1_000


class _TopicRead(NamedTuple):
    """What is known of a topic: as it was last read, and what is wrong with it now."""

    view: TopicView | None
    damage: VqError | None = None


class _Counts(NamedTuple):
    """The counts of open partitions of all groups, and the session that read them."""

    session_id: int
    counts: dict[str, OpenCount | None]


class TopicFollower(Protocol):
    """Does what the topics ask for; in practice ``Partitions``."""

    async def apply_topic(self, view: TopicView) -> None:
        """Take a topic that is new or changed."""
        ...

    async def remove_topic(self, name: str) -> None:
        """Give up a topic that is no longer there, and was taken before or could not be read."""
        ...


class TopicsView:
    """Follows all topics of a cluster.

    Args:
        coordinator: Where to read.
        follower: Is told of every change.
        interval_s: How often to read again without a reason.

    Attributes:
        problems: Topics that could not be followed when they were last looked at, and why.
        removing: Topics whose nodes somebody removes, or began to.
        lookups: Who waits for a read of a topic.
        refreshing: Held while topics are read; no read begins while somebody holds it.
        hinted: Set when something is to be read.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        *,
        follower: TopicFollower,
        interval_s: float,
    ) -> None:
        self._coordinator = coordinator
        self._follower = follower
        self._interval_s = interval_s
        self._known: dict[str, TopicView] = {}
        self._told: set[str] = set()  # given to ``follower``, perhaps in vain, and not gone yet
        self.problems: dict[str, VqError] = {}
        self.removing: set[str] = set()
        self.hinted = asyncio.Event()
        self._mirror = Mirror(
            coordinator,
            TOPICS,
            self._read_one,
            on_hint=self.hinted.set,
            on_value=lambda name, _: self._due.add(name),
        )
        self._due: set[str] = set()  # topics to be followed anew
        self._all = True
        self.refreshing = asyncio.Lock()
        self.lookups = Lookups()

    @property
    def topics(self) -> dict[str, TopicView]:
        """The topics as they are followed; not to be changed."""
        return self._known

    def told_problems(self) -> list[str]:
        """Return what STATUS tells of ``problems``; bounded."""
        names = sorted(self.problems)
        told = [
            f"topic {name} cannot be followed: {self.problems[name]}"[:PROBLEM_CHARACTERS_MAX]
            for name in names[:PROBLEMS_TOLD_MAX]
        ]
        if len(names) > PROBLEMS_TOLD_MAX:
            told.append(f"{len(names) - PROBLEMS_TOLD_MAX} more topics cannot be followed")
        return told

    def not_followed(self) -> Iterator[TopicView | None]:
        """Yield the topics of ``problems`` as last read; None: one that was never read.

        Those that are gone from ZooKeeper are left out.
        """
        for name in self.problems:
            found = self._mirror.values.get(name)
            if found is not None or name not in self._told:
                yield None if found is None else found.view

    def why_not_followed(self, topic: str) -> VqError | None:
        """Return the refusal for a request that needs a topic which could not be followed."""
        problem = self.problems.get(topic)
        if problem is None or isinstance(problem, DiskFull):
            return problem
        return Busy(f"topic {topic!r} cannot be followed here now: {problem}")

    def hint(self, topic: str | None = None) -> None:
        """Have ``topic`` (None: everything) read again soon."""
        if topic is None:
            self._all = True
        else:
            self._follow_anew([topic])
        self.hinted.set()

    def _follow_anew(self, topics: Iterable[str]) -> None:
        """Have topics read again, and followed unless that is done."""
        for name in topics:
            self._mirror.mark(name)
            self._due.add(name)

    def ask(self, topic: str, then: Then, asker: Hashable) -> None:
        """Read ``topic`` again and call ``then`` afterwards, with an error if that failed.

        In the next turn of the loop with an error, when too many wait already. Never before this
        returns: ``then`` may ask again.

        Args:
            topic: Its name.
            then: What to call.
            asker: Whose requests are counted together, and take turns with others': a connection.
        """
        refusal = self.lookups.why_not(asker)
        if refusal:
            asyncio.get_running_loop().call_soon(then, Busy(f"{refusal}; try again"))
            return
        self.lookups.add(topic, asker, then)
        self.hinted.set()

    async def _answer(self, asked: Iterable[Lookup], error: VqError | None) -> None:
        """Call back those who asked; what one of them raises is no matter of the others.

        In turns of the loop: thousands may have asked.
        """
        async for lookup in in_turns(asked, ANSWERS_PER_TURN):
            self.lookups.done(lookup)
            try:
                lookup.then(error)
            except Exception:
                logger.exception("request that waited for ZooKeeper failed")

    async def refresh(self) -> None:
        """Read what is to be read now.

        Raises:
            ConnectionLost, SessionExpired: ZooKeeper cannot be read now; everything will be read
                next time. What is wrong with one topic is kept in ``problems``.
        """
        async with self.refreshing:
            await self._refresh()

    async def _refresh(self) -> None:
        everything, self._all = self._all, False
        due: list[str] = []
        try:
            before = await self._read_counts() if everything else None
            if everything:
                self._mirror.doubt()
            await self._mirror.refresh()
            due, self._due = sorted(self._due), set()
            for name in due:
                await self._refresh_one(name)
            if before is not None:
                await self._correct_counts(before)
        except BaseException:
            self._due.update(due)
            self.hint()
            raise

    async def _read_counts(self) -> _Counts:
        groups = await group_names(self._coordinator)
        session_id = self._coordinator.session_id
        return _Counts(session_id, await read_counts(self._coordinator, groups))

    async def _correct_counts(self, before: _Counts) -> None:
        """Correct the counts that were read before all topics were read."""
        if before.session_id != self._coordinator.session_id:
            return  # the next session may have begun at a server that was behind
        found = self._mirror.values.values()
        if any(each.damage is not None for each in found):
            return
        actual = Counter(
            placement.writer_group
            for each in found
            if each.view is not None and each.view.phase == READY
            for placement in each.view.partitions
            if placement.writer_group is not None
        )
        await correct_counts(self._coordinator, before.counts, actual)

    async def run(self) -> None:
        """Refresh for ever; the first ``refresh`` is the caller's.

        Not a ``coordination.tree.keeper``: there are two timers, what ``refresh`` raises is the
        answer to those who asked, and a pause that grew would keep them waiting.
        """
        loop = asyncio.get_running_loop()
        audit_at, retry_at = loop.time() + self._interval_s, loop.time() + PROBLEM_RETRY_S
        while True:
            wait_s = min(audit_at, retry_at if self.problems else math.inf) - loop.time()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self.hinted.wait()
            # Not in ``refresh``, which others call, too: they answer nobody who asked.
            self.hinted.clear()
            if loop.time() >= audit_at:
                self._all, audit_at = True, loop.time() + self._interval_s
            if loop.time() >= retry_at:
                self._follow_anew(self.problems)
                retry_at = loop.time() + PROBLEM_RETRY_S
            names, lists, asked = self.lookups.take(ASKED_AT_ONCE_MAX, self.is_followed)
            self._follow_anew(names)
            if lists:
                self._mirror.mark_names()
            error: VqError | None = None
            try:
                await self.refresh()
            except VqError as caught:
                logger.warning("topics cannot be read, trying again", retry_s=RETRY_S, error=caught)
                error = caught
            except Exception as caught:  # the loop that follows topics must not end
                logger.exception("following topics failed, trying again", retry_s=RETRY_S)
                error = CoordinationError(f"{type(caught).__name__}: {caught}")
            if error is not None:
                asked += self.lookups.take_all()
            await self._answer(asked, error)
            if self.lookups:
                self.hinted.set()
            await asyncio.sleep(RETRY_S if error is not None else ASKED_INTERVAL_S)

    def is_followed(self, name: str) -> bool:
        """Whether a name is to be read by itself: the list of topics tells nothing new of it."""
        return name in self._mirror.values or name in self.problems

    async def _read_one(self, name: str, watch: Watch) -> _TopicRead | None:
        before = self._mirror.values.get(name)
        known = None if before is None else before.view
        # No watch for names that only a client claims to know: whoever invents names must not make
        # us, and ZooKeeper, remember them. Topics that appear change the list of topics.
        if before is None and await self._coordinator.exists(TopicNode.path(name)) is None:
            return None
        try:
            view = await read_topic(
                self._coordinator, name, watch=watch, any_phase=True, known=known
            )
        except (ConnectionLost, SessionExpired):
            raise
        except (UnknownTopic, NoNode):
            return None
        except VqError as error:
            return _TopicRead(known, error)
        if before is not None and before.view is view and before.damage is None:
            return before
        return _TopicRead(view)

    async def _refresh_one(self, name: str) -> None:
        """Refresh a topic; what is wrong with one topic must not keep the others from us."""
        found = self._mirror.values.get(name)
        if found is not None and found.damage is not None:
            self.note_problem(name, found.damage)
            return
        view = None if found is None else found.view
        if view is not None and view is self._known.get(name) and name not in self.problems:
            return
        try:
            await self._refresh_topic(name, view)
        except (ConnectionLost, SessionExpired):
            raise
        except Exception as error:  # noqa: BLE001  it is noted
            self.note_problem(name, error)
        else:
            if self.problems.pop(name, None) is not None:
                logger.info("topic is followed again", topic=name)

    def note_problem(self, name: str, error: Exception) -> None:
        """Have a topic followed anew every few seconds, as a whole, until that works."""
        problem = _problem(name, error)
        if str(self.problems.get(name)) != str(problem):
            logger.error(
                "topic cannot be followed, trying again",
                topic=name,
                retry_s=PROBLEM_RETRY_S,
                error=problem,
                exc_info=error if isinstance(problem, InternalError) else None,
            )
        self.problems[name] = problem

    async def _refresh_topic(self, name: str, view: TopicView | None) -> None:
        if view is None or view.phase == DELETING:
            if view is None:
                self.removing.discard(name)
            else:
                self.removing.add(name)
            # Also where nothing, or not all of it, could be followed: there may be data of it.
            if name in self._told or name in self.problems:
                await self._follower.remove_topic(name)
                self._known.pop(name, None)
                self._told.discard(name)
        elif view.phase in {READY, IN_GRACE}:
            self.removing.discard(name)
            self._told.add(name)
            await self._follower.apply_topic(view)
            self._known[name] = view


def _problem(topic: str, error: Exception) -> VqError:
    """Return what to say of a topic that could not be followed."""
    if isinstance(error, VqError):
        return error
    if isinstance(error, OSError) and error.errno in FULL_ERRNOS:
        return DiskFull(f"the disk is full: topic {topic!r} cannot be prepared here: {error}")
    return InternalError(
        f"topic {topic!r} cannot be prepared here: {type(error).__name__}: {error}"
    )
