"""One value in ZooKeeper as a node knows it, and how old that is.

a watch fires       read again at once
every ``AUDIT_S``   read again, in case a watch was lost
it has no node      ``empty`` holds
it cannot be read   the last one holds, unless the owner decides otherwise
"""

import math
import random
from collections.abc import Callable
from typing import Final, Generic, NamedTuple, TypeVar

from vq.backoff import Backoff
from vq.broker.base.notice import Notice
from vq.broker.base.problems import Problems
from vq.broker.base.runner import Runner
from vq.clock import Clock
from vq.coordination.tree.coordinator import Coordinator, Unreadable, Watch, parent_of
from vq.coordination.tree.keeper import Keeper
from vq.coordination.tree.mirror import Mirror
from vq.log_lines import get_logger

logger = get_logger(__name__)
T = TypeVar("T")

#: How often it is read again even if no watch fired.
AUDIT_S: Final = 30.0
_BACKOFF: Final = Backoff(first_s=0.2, most_s=5.0)


class _Read(NamedTuple, Generic[T]):
    """A value as it was read, with the version of its node, and the transaction that made that."""

    value: T
    version: int = -1
    made: int = -1


class ValueSource(NamedTuple, Generic[T]):
    """Where a value is, and how it is read.

    Attributes:
        path: Its node.
        decode: Reads the bytes of the node; raises ``Unreadable``.
        empty: The value where there is no node.
        what: The subject of log lines: "rules of access".
        problems: Tells that it cannot be read.
    """

    path: str
    decode: Callable[[bytes], T]
    empty: T
    what: str
    problems: Problems


class KnownValue(Generic[T]):
    """See the module's text. Loop-bound.

    Args:
        source: The value.
        coordinator: A started coordinator, when ``start`` is called.
        clock: For the age.
        runner: Parses long values beside the loop.
        rng: For pauses.
        audit_s: How often it is read again at least.

    Attributes:
        current: The value that holds; None: none does.
        changed: Told when another one holds, or none.
    """

    def __init__(
        self,
        source: ValueSource[T],
        coordinator: Coordinator,
        clock: Clock,
        runner: Runner,
        rng: random.Random,
        *,
        audit_s: float = AUDIT_S,
    ) -> None:
        self._source = source
        self._name = source.path.rpartition("/")[2]
        self._coordinator = coordinator
        self._now = clock.monotonic
        self._runner = runner
        self.changed: Final = Notice[[]]()
        self.current: T | None = None
        self._read_at = -math.inf
        self._keeper = Keeper(
            coordinator, self._look, what=source.what, audit_s=audit_s, backoff=_BACKOFF, rng=rng
        )
        self._mirror: Mirror[_Read[T] | Unreadable] = Mirror(
            coordinator,
            parent_of(source.path),
            self._read,
            listed=False,
            on_hint=self._keeper.wake,
        )

    @property
    def age_s(self) -> float:
        """How long ago it was read."""
        return self._now() - self._read_at

    @property
    def version(self) -> int:
        """How often it was changed since it was made, when it was read last; -1: it has no node."""
        known = self._mirror.values.get(self._name)
        return known.version if isinstance(known, _Read) else -1

    async def start(self) -> None:
        """Read it, and follow it from now on.

        Raises:
            CoordinationError: ZooKeeper did not answer. A value that cannot be read is no error.
        """
        self._mirror.mark(self._name)
        await self._refresh()
        if not self._keeper.started:
            self._keeper.start()

    async def stop(self) -> None:
        """Follow it no more."""
        await self._keeper.stop()

    # What an owner may do otherwise -------------------------------------------------------------
    def _was_read(self) -> None:
        """ZooKeeper has answered."""

    def _instead(self) -> T | None:
        """Return what holds while the value cannot be read: the last one."""
        return self.current

    # Own ----------------------------------------------------------------------------------------
    def _set(self, value: T | None) -> None:
        if value is not self.current:
            self.current = value
            self.changed.tell()

    async def _look(self, everything: bool) -> None:
        if everything:
            self._mirror.mark(self._name)
        await self._refresh()

    async def _refresh(self) -> None:
        begun = self._now()
        await self._mirror.refresh()
        known = self._mirror.values.get(self._name)
        self._read_at = begun
        self._was_read()
        self._set(known.value if isinstance(known, _Read) else self._instead())

    async def _read(self, _name: str, watch: Watch) -> _Read[T] | Unreadable | None:
        source = self._source
        known = self._mirror.values.get(self._name)
        stat = await self._coordinator.exists(source.path, watch=watch)
        version, made = (-1, -1) if stat is None else (stat.version, stat.czxid)
        if isinstance(known, _Read) and (known.version, known.made) == (version, made):
            return known  # a value may be long, and is looked for again and again
        if stat is None:
            return _Read(source.empty)
        node = await self._coordinator.get(source.path, watch=watch)
        version, made = node.stat.version, node.stat.czxid
        try:
            value = await self._runner.run(lambda: source.decode(node.data))
        except Unreadable as error:
            source.problems.tell(self._name, error, znode=source.path)
            return error
        source.problems.clear()
        logger.info("value was read", what=source.what, version=version)
        return _Read(value, version, made)
