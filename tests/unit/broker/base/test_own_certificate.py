"""A node looks at its files of TLS, and says when others would refuse it."""

import asyncio
import datetime
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme
from support.certificates import write_tls

from vq.broker.base.alarm import LoopAlarm
from vq.broker.base.jobs import Jobs, While
from vq.broker.base.own_certificate import EXPIRES_SOON_S, OwnCertificate
from vq.broker.base.runner import InlineRunner
from vq.broker.base.tasks import Tasks
from vq.security.tls import ClientCertificates, TlsContexts
from vq.testing.loop import SimulatedClock, clock_of_loop

pytestmark = pytest.mark.virtual_time
DAY_S = 86_400


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


@asynccontextmanager
async def looking(
    *contexts: TlsContexts, host: str = "127.0.0.1"
) -> AsyncIterator[tuple[OwnCertificate, SimulatedClock]]:
    clock = clock_of_loop()
    assert isinstance(clock, SimulatedClock)
    tasks = Tasks()
    jobs = Jobs(LoopAlarm(), clock, tasks, random.Random(1))
    made = OwnCertificate(contexts, clock, InlineRunner(), jobs, host=host)
    jobs.begin(While.STARTED)
    await asyncio.sleep(1)
    try:
        yield made, clock
    finally:
        jobs.close()
        await tasks.close()


def metrics(made: OwnCertificate) -> dict[str, object]:
    return {
        fact.metric: fact.read(thing)
        for facts in made.facts()
        for thing in facts.things().values()
        for fact in facts.facts
    }


async def test_without_tls_nothing_is_looked_at_or_told() -> None:
    async with looking() as (made, _):
        made.look_soon()
        assert made.problems() == []
        assert metrics(made) == {}


async def test_new_files_are_used_within_ten_seconds_by_all_listeners(
    tmp_path: Path, ca: trustme.CA
) -> None:
    """Bad ones are a problem, a metric, and nothing else."""
    tls = write_tls(tmp_path, ca)
    both = [
        TlsContexts(tls, serves=True, client_certificates=asked)
        for asked in (ClientCertificates.REQUIRED, ClientCertificates.NONE)
    ]
    async with looking(*both) as (made, _):
        assert made.problems() == []
        write_tls(tmp_path, ca)
        await asyncio.sleep(10)
        assert [each.reloads for each in both] == [1, 1]
        Path(str(tls.key)).write_bytes(b"")
        made.look_soon()
        await asyncio.sleep(0.1)
        [problem] = made.problems()
        assert "no private key" in problem
        assert "the earlier files stay in use" in problem
        assert metrics(made)["vq_tls_files_refused"] == 1
        write_tls(tmp_path, ca)
        await asyncio.sleep(10)
        assert made.problems() == []


async def test_a_certificate_that_expires_soon_is_a_problem(tmp_path: Path, ca: trustme.CA) -> None:
    ends = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=300)
    contexts = TlsContexts(write_tls(tmp_path, ca, expires=ends), serves=True)
    async with looking(contexts) as (made, clock):
        ends_ms = metrics(made)["vq_tls_certificate_expiry_timestamp_seconds"]
        assert ends_ms == int(ends.timestamp()) * 1_000

        def at(left_s: float) -> list[str]:
            clock.wall_offset_ms = 0
            clock.wall_offset_ms = int(ends.timestamp() - left_s) * 1_000 - clock.wall_ms()
            return made.problems()

        assert at(EXPIRES_SOON_S + DAY_S) == []
        assert "expires in 3 days" in at(3.5 * DAY_S)[0]
        assert "has expired" in at(-5)[0]


@pytest.mark.parametrize(
    ("names", "trusts", "said"),
    [
        (("b2.example",), None, "another name"),
        ((), trustme.CA, "not signed by"),
    ],
)
async def test_a_node_says_that_others_cannot_verify_it(
    tmp_path: Path,
    ca: trustme.CA,
    names: tuple[str, ...],
    trusts: Callable[[], trustme.CA] | None,
    said: str,
) -> None:
    """Until it gets files with which they can."""
    wrong = write_tls(tmp_path, ca, *names, trusts=trusts and trusts())
    async with looking(TlsContexts(wrong, serves=True)) as (made, _):
        [problem] = made.problems()
        assert said in problem
        assert "others cannot reach this node at 127.0.0.1" in problem
        write_tls(tmp_path, ca)
        await asyncio.sleep(10)
        assert made.problems() == []
