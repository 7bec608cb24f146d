"""One run: start a cluster and its clients, strike, heal, drain, judge."""

import random
import shutil
import time
import traceback
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from support.chaos import evidence
from support.chaos.delays import BRIEF_S, DELAYS_S
from support.chaos.groups import PARTITIONS, TOPIC, Groups, make_groups
from support.chaos.load import ACKNOWLEDGED_MIN, running_load
from support.chaos.nemesis import Field
from support.chaos.network import Network
from support.chaos.proxies import Proxies
from support.chaos.rows import Row
from support.cluster import process_cluster
from support.faults import client_of, sighted
from support.history import read_histories
from support.judge import Evidence, Fault, Verdict, judge
from support.small_disk import small_disk_at

from vq.devtools.zookeeper import EmbeddedZooKeeper


@dataclass
class Strike:
    """One fault: whether it had an effect, and how long acknowledgements and copies took."""

    fault: str
    effect: bool
    failovers: int
    gap_s: float
    whole_s: float


@dataclass
class Outcome:
    """The result of one run. ``failure`` is why it has no verdict: it did not come to an end."""

    row: str
    seed: int
    seconds: float = 0.0
    strikes: list[Strike] = field(default_factory=list)
    acknowledged: int = 0
    verdict: Verdict = field(default_factory=Verdict)
    failure: str = ""

    @property
    def void(self) -> bool:
        """Whether nothing is wrong but a fault without effect."""
        return not self.failure and self.verdict.kinds == {"void"}

    @property
    def good(self) -> bool:
        """Whether nothing is wrong."""
        return not self.failure and not self.verdict.anomalies


def run(row: Row, strikes: int, seed: int, directory: Path) -> Outcome:
    """Do one run; ``directory`` is made anew, and deleted if nothing is wrong."""
    shutil.rmtree(directory, ignore_errors=True)
    outcome = Outcome(row.name, seed)
    begin = time.monotonic()
    try:
        _run(row, strikes, random.Random(f"{seed}/{row.name}"), directory, outcome)
    except Exception:  # a run that does not come to its end is a result
        outcome.failure = traceback.format_exc()
        (directory / "failure.txt").write_text(outcome.failure)
    outcome.seconds = time.monotonic() - begin
    if outcome.good:
        shutil.rmtree(directory)
    else:
        (directory / "verdict.txt").write_text(str(outcome.verdict))
    return outcome


def _run(row: Row, strikes: int, rng: random.Random, directory: Path, outcome: Outcome) -> None:
    histories = directory / "histories"
    brokers = directory / "brokers"
    brokers.mkdir(parents=True)
    with ExitStack() as stack:
        place = directory / "zookeeper"
        zookeeper = stack.enter_context(EmbeddedZooKeeper(place, servers=row.servers, purge=False))
        network = stack.enter_context(Network()) if row.cuts else None
        proxies = None
        if row.proxies or row.slow:
            proxies = stack.enter_context(Proxies(before_nodes=row.proxies))
        if row.disk_bytes:
            for group, size in row.nodes.items():
                for number in range(size):
                    disk = brokers / f"{group}-n{number + 1}"
                    stack.enter_context(small_disk_at(disk, row.disk_bytes))
        cluster = stack.enter_context(process_cluster(brokers, zookeeper.hosts))
        stack.callback(zookeeper.start)  # also when a fault was cut short
        groups = stack.enter_context(
            make_groups(cluster, zookeeper, network, row.nodes, proxies=proxies, clocks=row.clocks)
        )
        _create_topic(groups, row.nodes, rng)
        delays_s = (BRIEF_S if row.brief else DELAYS_S) if row.delayed else ()
        with running_load(
            cluster,
            histories,
            rng,
            patient=not row.repeats,
            delays_s=delays_s,
            transactors=row.transactors,
            sharers=row.sharers,
        ) as load:
            target = Field(groups, load, zookeeper, rng, brief=row.brief)
            _strike(row, strikes, target, outcome)
            groups.heal()
            groups.wait_whole()
            load.wait_acknowledged()
            load.finish()
            load.wait_delivered(histories)
            with client_of(cluster) as factory:
                log, watermarks = evidence.final_log(factory)
            load.wait_drained(log)
            copies = evidence.copies(groups, watermarks)
        outcome.acknowledged = load.sent
        taken = evidence.of_zookeeper(place, cluster.name)
        outcome.verdict = judge(
            Evidence(
                histories=read_histories(histories.glob("*.jsonl")),
                log=log,
                group=True,
                **taken,
                copies=copies,
                watermarks=watermarks,
                away=target.away,
                drained=True,
                repeats_allowed=row.repeats,
                faults=_faults(outcome),
                acknowledged_min=ACKNOWLEDGED_MIN,
            )
        )
        if load.sharers is not None:
            outcome.verdict.anomalies += load.sharers.judge(taken["reigns"])


def _create_topic(groups: Groups, nodes: Mapping[str, int], rng: random.Random) -> None:
    """Make the topic; with three nodes it may need two of them in sync."""
    least = rng.choice((1, 2)) if min(nodes.values()) > 2 else 1
    settings = ("--partitions", str(PARTITIONS), "--min-insync", str(least))
    groups.cluster.vq_json("topic", "create", TOPIC, *settings)
    groups.wait_whole()


def _strike(row: Row, strikes: int, target: Field, outcome: Outcome) -> None:
    groups, load = target.groups, target.load
    first = target.rng.randrange(len(row.faults))
    for number in range(strikes):
        index = target.rng.randrange(len(row.faults)) if row.mixed else first + number
        fault = row.faults[index % len(row.faults)]
        load.wait_acknowledged()
        epochs = _epochs(groups)
        load.begin_gap()
        effect = fault(target)
        whole_s = groups.wait_whole()
        load.wait_acknowledged(1)
        strike = Strike(fault.__name__, effect, _epochs(groups) - epochs, load.gap_s, whole_s)
        outcome.strikes.append(strike)
        assert not (row.steady and strike.failovers), f"{strike.fault} ended a reign"
        print(
            f"  {row.name} {number + 1}/{strikes} {strike.fault}: "
            f"{'' if effect else 'NO EFFECT, '}fail-overs {strike.failovers}, "
            f"gap {strike.gap_s:.2f} s, whole {whole_s:.2f} s later; {load}",
            flush=True,
        )


def _epochs(groups: Groups) -> int:
    """Return the sum of the epochs of all groups, once ZooKeeper tells them."""
    # The record is empty while ZooKeeper cannot be asked; no epoch is 0.
    return sum(
        sighted(lambda group=group: groups.record(group).epoch or None, f"the epoch of {group}")
        for group in groups.groups
    )


def _faults(outcome: Outcome) -> list[Fault]:
    names = sorted({strike.fault for strike in outcome.strikes})
    return [
        Fault(
            name,
            sum(each.effect for each in outcome.strikes if each.fault == name),
            strikes=sum(each.fault == name for each in outcome.strikes),
        )
        for name in names
    ]
