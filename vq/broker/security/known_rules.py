"""The rules of access as a node knows them: a mirror of one value in ZooKeeper, and its age.

a watch fires              read again at once
every ``AUDIT_S``          read again, in case a watch was lost
ZooKeeper does not answer  the last rules hold, for ``age_max_s`` since they were read
older, or unreadable       no rules: whoever asks for a decision is refused (fail closed)
"""

import asyncio
import math
import random
from collections.abc import Iterator
from typing import Any, Final

from vq.backoff import Backoff
from vq.broker.base.facts import Facts, gauge
from vq.broker.base.notice import Notice
from vq.broker.base.problems import Problems
from vq.broker.base.runner import Runner
from vq.clock import Clock
from vq.coordination.security.access import KnownAccess
from vq.coordination.tree.coordinator import Coordinator, Unreadable, Watch, parent_of
from vq.coordination.tree.keeper import Keeper
from vq.coordination.tree.mirror import Mirror
from vq.coordination.tree.values.access import AccessList
from vq.log_lines import get_logger
from vq.security.rules import AccessRules

__all__ = ["KnownRules"]

logger = get_logger(__name__)

#: How often they are read again even if no watch fired.
AUDIT_S: Final = 30.0
#: The part of the greatest age after which they are read again, if that is less.
AUDITS_PER_AGE: Final = 3
_BACKOFF: Final = Backoff(first_s=0.2, most_s=5.0)
_NAME: Final = AccessList.path().rpartition("/")[2]


class KnownRules:
    """See the module's text. Loop-bound.

    Args:
        coordinator: A started coordinator, when ``start`` is called.
        clock: For the age.
        runner: Parses many rules beside the loop.
        rng: For pauses.
        age_max_s: See the module's text.

    Attributes:
        current: The rules that hold; None: they are not known, or too old.
        changed: Told when other rules hold, or none.
        version: Of the rules that were read last; -1: there are none.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        clock: Clock,
        runner: Runner,
        rng: random.Random,
        *,
        age_max_s: float,
    ) -> None:
        self._coordinator = coordinator
        self._now = clock.monotonic
        self._runner = runner
        self.age_max_s = age_max_s
        self.changed: Final = Notice[[]]()
        self.current: AccessRules | None = None
        self._problems = Problems(logger, "rules of access cannot be read, refusing everything")
        self._read_at = -math.inf
        self._ages: asyncio.TimerHandle | None = None
        self._keeper = Keeper(
            coordinator,
            self._look,
            what="rules of access",
            audit_s=min(AUDIT_S, age_max_s / AUDITS_PER_AGE),
            backoff=_BACKOFF,
            rng=rng,
        )
        self._mirror: Mirror[KnownAccess | Unreadable] = Mirror(
            coordinator,
            parent_of(AccessList.path()),
            self._read,
            listed=False,
            on_hint=self._keeper.wake,
        )

    @property
    def age_s(self) -> float:
        """How long ago they were read."""
        return self._now() - self._read_at

    @property
    def version(self) -> int:
        """See the class."""
        known = self._mirror.values.get(_NAME)
        return known.version if isinstance(known, KnownAccess) else -1

    async def start(self) -> None:
        """Read them, and follow them from now on.

        Raises:
            CoordinationError: ZooKeeper did not answer. Rules that cannot be read are no error:
                everything is refused until they can.
        """
        self._mirror.mark(_NAME)
        await self._refresh()
        if not self._keeper.started:
            self._keeper.start()

    async def stop(self) -> None:
        """Follow them no more."""
        if self._ages is not None:
            self._ages.cancel()
        await self._keeper.stop()

    async def _look(self, everything: bool) -> None:
        if everything:
            self._mirror.mark(_NAME)
        await self._refresh()

    def _look_at_age(self) -> None:
        """Forget rules that are too old; otherwise look again when they would be."""
        left_s = self.age_max_s - self.age_s
        if left_s > 0:
            loop = asyncio.get_running_loop()
            self._ages = loop.call_later(left_s, self._look_at_age)
            return
        self._ages = None
        logger.error(
            "rules of access are too old, refusing what they would decide",
            age_s=round(self.age_s),
            age_max_s=self.age_max_s,
        )
        self._set(None)

    def _set(self, rules: AccessRules | None) -> None:
        if rules is not self.current:
            self.current = rules
            self.changed.tell()

    async def _refresh(self) -> None:
        begun = self._now()
        await self._mirror.refresh()
        known = self._mirror.values.get(_NAME)
        self._read_at = begun
        if self._ages is None:
            self._look_at_age()
        self._set(known.rules if isinstance(known, KnownAccess) else None)

    async def _read(self, _name: str, watch: Watch) -> KnownAccess | Unreadable | None:
        path = AccessList.path()
        known = self._mirror.values.get(_NAME)
        stat = await self._coordinator.exists(path, watch=watch)
        version, made = (-1, -1) if stat is None else (stat.version, stat.czxid)
        if isinstance(known, KnownAccess) and (known.version, known.made) == (version, made):
            return known  # many rules are long, and are looked for again and again
        if stat is None:
            return KnownAccess(AccessRules())
        node = await self._coordinator.get(path, watch=watch)
        version, made = node.stat.version, node.stat.czxid
        try:
            listed = await self._runner.run(lambda: AccessList.decode(path, node.data))
        except Unreadable as error:
            self._problems.tell("rules", error, znode=path)
            return error
        self._problems.clear()
        logger.info("rules of access", rules=len(listed.rules), version=version)
        return KnownAccess(listed.rules, version, made)

    def facts(self) -> Iterator[Facts[Any]]:
        """Return what it tells."""
        yield Facts[KnownRules].of(
            self,
            gauge(
                "vq_access_rules",
                "Rules of access that the node knows; none while they cannot be read.",
                lambda known: None if known.current is None else len(known.current),
            ),
            gauge(
                "vq_access_rules_age_seconds",
                "How long ago the node read the rules of access.",
                lambda known: known.age_s if math.isfinite(known.age_s) else None,
            ),
        )
