"""The clients of a run: idempotent producers and members of a group, each with its own history."""

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from support.chaos.clients import StepClient
from support.chaos.delays import Delayer
from support.chaos.groups import TOPIC
from support.chaos.shared import Sharers
from support.chaos.transactions import Transactor
from support.cluster import ProcessCluster
from support.faults import Places, Sender, Way, client_of, member_of, wait_drained

from vq.testing.waiting import PROCESSES_WAIT_S, block_until

GROUP: Final = "g"
MEMBERS: Final = ("m0", "m1")
#: Messages per second and bytes of a message of each producer.
PRODUCERS: Final = ((80.0, 200), (50.0, 1_000), (20.0, 4_000))
#: Acknowledged sends without which a fault proves nothing (M-VOID).
ACKNOWLEDGED_MIN: Final = 50


class Load:
    """The running clients."""

    def __init__(
        self,
        senders: Sequence[Sender],
        seen: Sequence[Places],
        others: Sequence[StepClient] = (),
        sharers: Sharers | None = None,
    ) -> None:
        self.senders = senders
        self.sharers = sharers
        self._seen = seen
        self._others = others

    def wait_acknowledged(self, more: int = ACKNOWLEDGED_MIN) -> None:
        """Wait until so many more messages were acknowledged in all, and one of each producer."""
        before = [sender.sent for sender in self.senders]
        goal = sum(before) + more

        def enough() -> bool:
            now = [sender.sent for sender in self.senders]
            failed = any(sender.failure for sender in self.senders)
            each = all(later > earlier for earlier, later in zip(before, now, strict=True))
            return failed or (sum(now) >= goal and each)

        block_until(enough, self, timeout_s=PROCESSES_WAIT_S)

    def begin_gap(self) -> None:
        """Forget the gaps so far."""
        for sender in self.senders:
            sender.longest_gap_s = 0.0

    @property
    def gap_s(self) -> float:
        """The longest time in which no acknowledgement came to some producer."""
        return max(sender.longest_gap_s for sender in self.senders)

    @property
    def sent(self) -> int:
        """How many messages were acknowledged."""
        return sum(sender.sent for sender in self.senders)

    def finish(self) -> None:
        """Have all producers end in order: every send has its outcome then."""
        for sender in self.senders:
            sender.finish()
        for other in self._others:
            other.finish()

    def wait_delivered(self, histories: Path) -> None:
        """Wait until what was delayed has come, if anything was, and what was committed."""
        for other in self._others:
            other.wait_delivered(histories)
        if self.sharers is not None:
            self.sharers.wait_done()
            self.sharers.finish()

    def wait_drained(self, log: Mapping[int, Sequence[tuple[int, str]]]) -> None:
        """Wait until the group has received everything."""
        wait_drained(log, *self._seen)

    def __str__(self) -> str:
        return "; ".join(map(str, self.senders))


@contextmanager
def running_load(
    cluster: ProcessCluster,
    histories: Path,
    rng: random.Random,
    *,
    patient: bool = True,
    delays_s: Sequence[float] = (),
    transactors: int = 0,
    sharers: int = 0,
) -> Iterator[Load]:
    """Run producers and members; every client has a session of its own.

    ``patient`` sessions outlive a machine that is busy with other things. With ``delays_s``
    there is one more producer, whose messages come so much later. Each of ``transactors`` makes
    transactions. With ``sharers`` there is a shared group of so many processes, which keeps the
    order of keys in every second run.
    """
    session_s = 40.0 if patient else 10.0
    with ExitStack() as stack:
        seen = [
            stack.enter_context(
                member_of(
                    cluster,
                    histories,
                    name,
                    group=GROUP,
                    topic=TOPIC,
                    session_timeout_s=session_s,
                )
            )
            for name in MEMBERS
        ]
        senders = []
        for number, (rate, size) in enumerate(PRODUCERS):
            factory = stack.enter_context(client_of(cluster, session_timeout_s=session_s))
            sender = Sender(
                factory,
                TOPIC,
                histories / f"s{number}.jsonl",
                rate=rate,
                size=size,
                way=_Keys(random.Random(rng.randrange(1 << 32))),
            )
            senders.append(stack.enter_context(sender))
        others: list[StepClient] = []
        for name in (*(["d0"] if delays_s else []), *(f"t{each}" for each in range(transactors))):
            factory = stack.enter_context(client_of(cluster, session_timeout_s=session_s))
            own = random.Random(rng.randrange(1 << 32))
            path = histories / f"{name}.jsonl"
            if name == "d0":
                others.append(Delayer(factory, TOPIC, path, own, delays_s))
            else:
                others.append(Transactor(factory, TOPIC, path, own))
            stack.callback(others[-1].stop)
            others[-1].start()
        pool = None
        if sharers:
            factory = stack.enter_context(client_of(cluster, session_timeout_s=session_s))
            keyed = rng.choice((False, True))
            pool = Sharers(cluster, factory, histories / "shared", sharers, keyed=keyed)
            stack.callback(pool.stop)
            stack.enter_context(pool.sender)
        yield Load(senders, seen, others, pool)


class _Keys:
    """Some messages have a key, so that they stay in one partition."""

    def __init__(self, rng: random.Random) -> None:
        keys = [None, None, "a", "b", "c", "d"]
        self._ways = itertools.cycle([Way(rng.choice(keys)) for _ in range(997)])

    def __call__(self, _: int) -> Way:
        return next(self._ways)
