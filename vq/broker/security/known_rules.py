"""The rules of access as a node knows them: a mirror of one value in ZooKeeper, and its age.

ZooKeeper does not answer  the last rules hold, for ``age_max_s`` since they were read
older, or unreadable       no rules: whoever asks for a decision is refused (fail closed)
"""

import asyncio
import math
import random
from collections.abc import Iterator
from typing import Any, Final

from vq.broker.base.facts import Facts, gauge
from vq.broker.base.problems import Problems
from vq.broker.base.runner import Runner
from vq.broker.security.known_value import AUDIT_S, KnownValue, ValueSource
from vq.clock import Clock
from vq.coordination.tree.coordinator import Coordinator
from vq.coordination.tree.values.access import AccessList
from vq.log_lines import get_logger
from vq.security.rules import AccessRules

logger = get_logger(__name__)

#: The part of the greatest age after which they are read again, if that is less than ``AUDIT_S``.
AUDITS_PER_AGE: Final = 3


class KnownRules(KnownValue[AccessRules]):
    """See the module's text. Loop-bound.

    Args:
        coordinator, clock, runner, rng: See ``KnownValue``.
        age_max_s: See the module's text.

    Attributes:
        age_max_s: See the module's text.
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
        path = AccessList.path()
        super().__init__(
            ValueSource(
                path,
                lambda data: AccessList.decode(path, data).rules,
                AccessRules(),
                "rules of access",
                Problems(logger, "rules of access cannot be read, refusing everything"),
            ),
            coordinator,
            clock,
            runner,
            rng,
            audit_s=min(AUDIT_S, age_max_s / AUDITS_PER_AGE),
        )
        self.age_max_s = age_max_s
        self._ages: asyncio.TimerHandle | None = None

    async def stop(self) -> None:
        """See ``KnownValue``."""
        if self._ages is not None:
            self._ages.cancel()
        await super().stop()

    def _was_read(self) -> None:
        if self._ages is None:
            self._look_at_age()

    def _instead(self) -> None:
        return None

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
