"""What is left for healthy clients while somebody attacks their broker.

Goal: they fail nothing and lose nothing, and the broker's memory stays within its bounds. They have
a user, attackers have none, and ``anonymous`` has a quota. Turns
without and with the attack follow one another in the same run, and the medians of their ratios
count; the long form has all attacks, more connections, and bounds of rate and latency.

    VQ_LONG=1 pytest tests/faults/test_attacks.py -s    # prints the figures of the page
"""

import os
import re
import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import trustme
from support.attacks import ATTACKS, TOPIC, Tally, attacking
from support.certificates import write_tls
from support.cluster import ForkedBroker, ProcessCluster, process_cluster
from support.healthy import HealthyClients, Measured
from support.zookeeper import ZooKeeperService

from vq.devtools.processes import BrokerChild
from vq.testing.waiting import block_until

LONG: Final = os.environ.get("VQ_LONG") == "1"
TURNS: Final = int(os.environ.get("VQ_TURNS") or (5 if LONG else 1))
TURN_S: Final = float(os.environ.get("VQ_TURN_S") or (6.0 if LONG else 1.5))
#: Of a turn without the attack. A machine with few cores shares them among all three.
RATE_MIN: Final = 0.8
P99_MAX: Final = 3.0
#: Healthy clients have a user; who attacks has none, and what such ones may use is bounded.
PASSWORD: Final = "correct horse battery staple"
QUOTA: Final = ("requests=500", "bytes-in=4M", "bytes-out=4M", "time=5%")
#: Tried in the short form: before HELLO, behind it, and what is large.
SHORT: Final = ("silent connections", "lengths of 4 GiB", "bombs in headers")


def status_of(broker: BrokerChild, name: str) -> int:
    """Return what the kernel counts of a process, in MiB."""
    text = Path(f"/proc/{broker.pid}/status").read_text()
    (found,) = re.findall(rf"{name}:\s+(\d+) kB", text)
    return int(found) // 1024


@contextmanager
def peak_of(broker: BrokerChild) -> Iterator[list[int]]:
    """Provide a list that has the most that the broker had meanwhile, in MiB, in the end.

    Without the pages of files that it maps, its logs: the kernel has these, and takes them back.
    """
    found = list[int]()
    ended = threading.Event()

    def look() -> None:
        most = status_of(broker, "RssAnon")
        while not ended.wait(0.05):
            most = max(most, status_of(broker, "RssAnon"))
        found.append(most)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


class Contest:
    """A broker, its healthy clients, and whoever attacks it."""

    def __init__(
        self, cluster: ProcessCluster, broker: BrokerChild, config: dict[str, Any]
    ) -> None:
        self.broker = broker
        self._directory = cluster.directory
        self.clients = HealthyClients(
            {"zookeeper": cluster.zookeeper, "cluster": cluster.name, **config}
        )
        self.clients.turn(TURN_S)  # what is slow the first time is no part of it

    def under(self, name: str) -> tuple[list[Measured], list[Measured], int, Tally]:
        """Return turns without and with an attack, what it adds in MiB, and what was done.

        What it adds is to the most that the broker has for healthy clients alone.
        """
        attack = ATTACKS[name]
        without, during, did = [], [], Tally()
        usual, most = 0, 0
        for _ in range(TURNS):
            with peak_of(self.broker) as peak:
                without.append(self.clients.turn(TURN_S))
            usual = max(usual, peak[-1])
            count = attack.many if LONG else attack.count
            with (
                peak_of(self.broker) as peak,
                attacking(name, self.broker.spec.address, self._directory, count) as going,
            ):
                during.append(self.clients.turn(TURN_S))
                did = going.did
            most = max(most, peak[-1])
        return without, during, most - usual, did


def median_of(name: str, without: list[Measured], during: list[Measured]) -> float:
    """Return the median of the ratios of a figure, turn by turn."""
    pairs = zip(without, during, strict=True)
    return statistics.median(getattr(b, name) / getattr(a, name) for a, b in pairs)


def settings_of(directory: Path) -> str:
    """Return a file of settings with which users are asked for their passwords."""
    file = directory / "vq.toml"
    file.write_text('[broker]\nauthentication = "optional"\n')
    return str(file)


@pytest.fixture(scope="module")
def plain(
    tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeperService
) -> Iterator[Contest]:
    """One broker for all attacks: each begins with what the others have left behind."""
    directory = tmp_path_factory.mktemp("attacked")
    with process_cluster(directory, zookeeper.hosts) as processes:
        broker = processes.add("b1", "--config", settings_of(directory))
        password = directory / "password"
        password.write_text(f"{PASSWORD}\n")
        password.chmod(0o600)
        processes.vq_json("user", "add", "anna", "--new-password-file", str(password))
        processes.vq_json("quota", "set", "anonymous", *QUOTA)
        yield from contest_of(processes, broker, {"user": "anna", "password": PASSWORD})


@pytest.fixture
def secure(processes: ProcessCluster, tmp_path: Path) -> Iterator[Contest]:
    tls = write_tls(tmp_path, trustme.CA())
    broker = processes.run(ForkedBroker(replace(processes.spec("b1"), tls=tls)))
    yield from contest_of(processes, broker, {"tls": str(tls.ca)})


def contest_of(
    processes: ProcessCluster, broker: BrokerChild, config: dict[str, Any]
) -> Iterator[Contest]:
    assert processes.vq("topic", "create", TOPIC, "--partitions", "4").returncode == 0
    contest = Contest(processes, broker, config)
    try:
        yield contest
    finally:
        contest.clients.close()


def check(contest: Contest, name: str) -> str:
    """Have an attack go on; return its row of the table."""
    without, during, grown, did = contest.under(name)
    failures = [one for each in (*without, *during) for one in each.failures]
    assert failures == [], contest.broker.log_tail()
    assert all(each.received for each in during), "the consumer got nothing"
    assert did.requests or did.connections > len(during), "the attack did nothing"
    assert grown < ATTACKS[name].memory_mib
    block_until(lambda: contest.broker.running)
    rate, p99 = (median_of(each, without, during) for each in ("rate", "p99_ms"))
    fresh = statistics.median(each.fresh_ms for each in during)
    figures = (
        f"{did.connections / TURN_S:,.0f}",
        f"{did.mib / TURN_S:,.1f}",
        f"{statistics.median(each.rate for each in during):,.0f}",
        f"{rate:.2f}",
        f"{statistics.median(each.p99_ms for each in during):.1f}",
        f"{p99:.1f}",
        f"{fresh:.0f}",
        f"{grown}",
    )
    row = " | ".join(("", name, *figures, "")).strip()
    print(row, flush=True)
    if LONG:
        assert rate >= RATE_MIN, row
        assert p99 <= P99_MAX, row
    return row


@pytest.mark.slow
def test_healthy_clients_go_on_under_attacks(plain: Contest) -> None:
    """A few attacks for a moment each, one after the other, on the same broker."""
    for name in SHORT:
        check(plain, name)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [name for name, each in ATTACKS.items() if not each.over_tls])
def test_healthy_clients_keep_their_rate_under_an_attack(plain: Contest, name: str) -> None:
    check(plain, name)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [name for name, each in ATTACKS.items() if each.over_tls])
def test_healthy_clients_of_tls_keep_their_rate_under_an_attack(secure: Contest, name: str) -> None:
    check(secure, name)
