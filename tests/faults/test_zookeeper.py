"""ZooKeeper stops, loses its leader, is cut off, ends sessions - while messages flow.

    sender ──▶ broker ──▶ members of a group        each has its own link to ZooKeeper
       ╲         │          ╱
        ╲     ZooKeeper    ╱

Goal: nothing is lost, doubled or skipped; masters and clients with cached routes go on; everything
finds its way back by itself and leaves no node behind that belongs to nobody.
"""

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from support.chaos_proxy import DOWN, UP, ChaosProxy
from support.cluster import ForkedBroker, ProcessCluster, process_cluster
from support.faults import (
    LONG,
    Sender,
    StallWatch,
    broker_settings,
    client_of,
    ephemerals,
    judge_run,
    make_rng,
    member_of,
    owners,
    read_back,
    sighted,
    times,
    wait_drained,
    wait_leader,
    wait_shared,
    wait_tidy,
)
from support.judge import Fault
from support.topics import create_topic
from support.zookeeper import admin
from support.zookeeper_log import group_evidence

import vq
from vq.devtools.zookeeper import EmbeddedZooKeeper
from vq.model import Address
from vq.testing.waiting import PROCESSES_WAIT_S, block_until

pytestmark = pytest.mark.slow

PARTITIONS = 4
GROUP = "g"
SESSION_S = 1.5
#: Acknowledgements need no ZooKeeper; what they wait for is a busy machine.
STILL_S = 10.0
#: Messages flow for a minute in all; in the short form some are sent together, which costs less.
TICK_S = 0.005 if LONG else 0.02
#: How long after its return everything works with ZooKeeper again, on a machine that does nothing
#: else; the long form has one.
BACK_S = 7.5 if LONG else PROCESSES_WAIT_S


@pytest.fixture
def own(make_zookeeper: Callable[..., EmbeddedZooKeeper], tmp_path: Path) -> Iterator[tuple]:
    """A ZooKeeper of this test's own, and a cluster on it, no broker yet."""
    zookeeper = make_zookeeper()
    with process_cluster(tmp_path / "brokers", zookeeper.hosts) as cluster:
        yield zookeeper, cluster


def start_broker(
    cluster: ProcessCluster,
    tmp_path: Path,
    *,
    zookeeper: str | None = None,
    session_timeout_s: float = SESSION_S,
) -> None:
    """Start the broker of group b1 with a short session, and make the topic."""
    flags = broker_settings(tmp_path / "b1.toml", session_timeout_s=session_timeout_s)
    cluster.add("b1", *flags, zookeeper=zookeeper)
    cluster.vq_json("topic", "create", "t", "--partitions", str(PARTITIONS))


def owned(cluster: ProcessCluster) -> dict[int, tuple[str, int]]:
    """Return member and session of every partition of the group that is owned now."""
    return owners(cluster, GROUP, "t")


def session_of(cluster: ProcessCluster, path: str) -> int:
    """Return the session that owns an ephemeral node below the cluster's root, 0 if none does."""
    stat = cluster.look(lambda client: client.exists(f"/vq/{cluster.name}/{path}"))
    return stat.ephemeralOwner if stat is not None else 0


def slots(cluster: ProcessCluster) -> set[int]:
    """Return the sessions that hold a message-id slot."""
    root = f"/vq/{cluster.name}/slots"

    def read(client: KazooClient) -> set[int]:
        found = [client.exists(f"{root}/{name}") for name in client.get_children(root)]
        return {stat.ephemeralOwner for stat in found if stat is not None}

    return cluster.look(read)


def sessions(cluster: ProcessCluster) -> dict[str, int]:
    """Return the session of the broker, of who sends, and of every member."""
    found = ephemerals(cluster)
    return {path: found[path] for path in found if "/load/" not in path}


def flow(sender: Sender, seconds: float) -> int:
    """Let messages flow for so long, and see that they do all the time; return how many.

    The last ones are sent at the end of that time. If they needed what is away until then, they
    would never be acknowledged: the test brings it back only when they are.
    """
    before = sender.sent
    sender.longest_gap_s = 0.0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sender.wait_sent(50, timeout_s=STILL_S)
    assert sender.longest_gap_s < STILL_S, "acknowledgements stood still"
    sender.wait_sent(sender.open + 50)
    return sender.sent - before


def committed(cluster: ProcessCluster) -> dict[str, int]:
    """Return the group's offset in every partition, as ZooKeeper has it."""
    root = f"/vq/{cluster.name}/consumers/{GROUP}/offsets/t"

    def read(client: KazooClient) -> dict[str, int]:
        names = client.get_children(root) if client.exists(root) else []
        return {name: json.loads(client.get(f"{root}/{name}")[0])["offset"] for name in names}

    return cluster.look(read)


def wait_service(cluster: ProcessCluster, factory: vq.MessageFactory, topic: str) -> float:
    """Wait until broker, sender and group work with ZooKeeper again; return after how long.

    A new topic is taken over by the broker and found by the sender, and progress is committed in
    every partition, so by every member.
    """
    begin = time.monotonic()
    create_topic(cluster, topic, partitions=1)
    producer = factory.create_producer()
    producer.send_sync(vq.Message(topic, b"again"), timeout=PROCESSES_WAIT_S)
    producer.close()
    before = committed(cluster)
    assert before

    def gone_on() -> bool:
        now = committed(cluster)
        return all(now.get(partition, -1) > offset for partition, offset in before.items())

    block_until(gone_on, "the group commits again, in every partition")
    return time.monotonic() - begin


def stalled(watch: StallWatch, away_s: list[float], session_s: float) -> bool:
    """Whether the machine was so busy that sessions could end.

    A session has its whole time-out from the moment at which there is a leader again, so it must
    live on where everybody was back that long after the servers were started.
    """
    return watch.longest_s > session_s / 8 or max(away_s) > session_s


def test_messages_flow_while_zookeeper_is_stopped(own, tmp_path: Path) -> None:
    """Stopped for longer than a session: acknowledgements go on, and nothing is repeated.

    Sessions outlive it, unless the machine is too busy to bring them back in time; then members
    begin anew where they committed.
    """
    zookeeper, cluster = own
    outages_s = [20.0, 20.0, 90.0] if LONG else [10.0]
    session_s = 8.0  # enough for a busy machine to come back
    start_broker(cluster, tmp_path, session_timeout_s=session_s)
    histories = tmp_path / "h"
    more = {"session_timeout_s": session_s}
    with (
        client_of(cluster, **more) as factory,
        member_of(cluster, histories, "m0", **more) as seen0,
        member_of(cluster, histories, "m1", **more) as seen1,
        Sender(factory, "t", histories / "s0.jsonl", tick_s=TICK_S) as sender,
    ):
        wait_shared(cluster, {"m0", "m1"}, PARTITIONS)
        before = sessions(cluster)
        sender.wait_sent(50)
        faults, back_s, away_s = [], [], []
        with StallWatch() as stalls:
            for outage_s in outages_s:
                zookeeper.kill()
                assert not zookeeper.pids
                flowed = flow(sender, outage_s)
                faults.append(Fault(f"ZooKeeper away for {outage_s:g} s", flowed, strikes=1))
                began = time.monotonic()
                zookeeper.start()
                back_s.append(wait_service(cluster, factory, f"after-{len(faults)}"))
                away_s.append(time.monotonic() - began)
                sender.wait_sent(50)
        print("in service again after", ", ".join(f"{each:.1f}" for each in back_s), "s;")
        print("since the servers were started", ", ".join(f"{each:.1f}" for each in away_s), "s")
        assert max(back_s) < BACK_S
        sender.finish()
        log = read_back(factory, "t")
        wait_drained(log, seen0, seen1)
        wait_shared(cluster, {"m0", "m1"}, PARTITIONS)
        changed = sessions(cluster).items() ^ before.items()
        kept = not changed
        assert kept or stalled(stalls, away_s, session_s), f"sessions ended: {sorted(changed)}"
        wait_tidy(cluster, "m0", "m1")
    wait_tidy(cluster, senders=0)
    claims, commits = group_evidence(zookeeper.directory / "server-1", cluster.name, GROUP, "t")
    judge_run(
        histories,
        log,
        *faults,
        acknowledged_min=50,
        group=True,
        drained=True,
        repeats_allowed=not kept,
        claims=claims,
        commits=commits,
    )


def test_sessions_that_end_under_everybody_are_replaced(own, tmp_path: Path) -> None:
    """Cut off until the server ends the session: broker, producer and a member, in turn."""
    zookeeper, cluster = own
    rounds = times(1, 20)
    histories = tmp_path / "h"
    replaced: dict[str, set[int]] = defaultdict(set)
    with ExitStack() as stack:
        server = Address.parse(zookeeper.hosts)
        links = [stack.enter_context(ChaosProxy(server)) for _ in range(3)]
        to_broker, to_producer, to_member = links
        start_broker(cluster, tmp_path, zookeeper=str(to_broker.address))
        factory = stack.enter_context(
            client_of(cluster, zookeeper=str(to_producer.address), session_timeout_s=SESSION_S)
        )
        sender = stack.enter_context(Sender(factory, "t", histories / "s0.jsonl", tick_s=TICK_S))
        seen0 = stack.enter_context(
            member_of(
                cluster,
                histories,
                "m0",
                zookeeper=str(to_member.address),
                session_timeout_s=SESSION_S,
            )
        )
        seen1 = stack.enter_context(
            member_of(cluster, histories, "m1", session_timeout_s=SESSION_S)
        )
        block_until(lambda: len(owned(cluster)) == PARTITIONS, "every partition is owned")
        sender.wait_sent(50)

        def expire(
            name: str, link: ChaosProxy, session: Callable[[], int], *, flowing: bool = True
        ) -> None:
            old = sighted(lambda: session() or None, f"the {name} has a session")
            link.swallow()
            block_until(lambda: session() != old, f"ZooKeeper ends the session of the {name}")
            if flowing:
                sender.wait_sent(20)
            link.heal()
            block_until(lambda: session() not in {0, old}, f"the {name} has a session again")
            sender.wait_sent(50)
            replaced[name].add(old)
            replaced[name].add(session())

        def session_of_broker() -> int:
            return session_of(cluster, "brokers/b1/nodes/n1")

        def session_of_producer() -> int:
            return max(slots(cluster), default=0)

        def session_of_member() -> int:
            return session_of(cluster, f"consumers/{GROUP}/members/m0")

        for _ in range(rounds):
            # A broker that is not registered cannot be found; messages wait for it.
            expire("broker", to_broker, session_of_broker, flowing=False)
            expire("producer", to_producer, session_of_producer)
            expire("member", to_member, session_of_member)
            wait_shared(cluster, {"m0", "m1"}, PARTITIONS)
        sender.finish()
        log = read_back(factory, "t")
        wait_drained(log, seen0, seen1)
        wait_tidy(cluster, "m0", "m1")
    claims, commits = group_evidence(zookeeper.directory / "server-1", cluster.name, GROUP, "t")
    faults = [
        Fault(f"session of the {name} ended", len(seen) - 1, strikes=rounds)
        for name, seen in replaced.items()
    ]
    judge_run(
        histories,
        log,
        *faults,
        acknowledged_min=50,
        group=True,
        drained=True,
        repeats_allowed=True,
        claims=claims,
        commits=commits,
    )


def test_requests_to_zookeeper_are_cut_at_any_byte(own, tmp_path: Path) -> None:
    """Requests and replies are lost in the middle; in the end every node is there once."""
    zookeeper, cluster = own
    rng = make_rng()
    cuts = times(6, 200)
    histories = tmp_path / "h"
    with ExitStack() as stack:
        server = Address.parse(zookeeper.hosts)
        links = [stack.enter_context(ChaosProxy(server)) for _ in range(2)]
        start_broker(cluster, tmp_path, zookeeper=str(links[0].address), session_timeout_s=4.0)
        factory = stack.enter_context(client_of(cluster))
        sender = stack.enter_context(Sender(factory, "t", histories / "s0.jsonl", tick_s=TICK_S))
        seen = [
            stack.enter_context(
                member_of(
                    cluster,
                    histories,
                    f"m{number}",
                    zookeeper=str(links[1].address),
                    session_timeout_s=4.0,
                )
            )
            for number in range(2)
        ]
        for _ in range(cuts):
            link = rng.choice(links)
            done = len(link.cuts)
            direction = rng.choice([UP, DOWN])
            link.cut(direction, rng.randrange(400), reset=rng.random() < 0.5)
            assert link.wait_cuts(done + 1), "nothing was cut"
            sender.wait_sent(50)
        sender.wait_sent(50)
        sender.finish()
        log = read_back(factory, "t")
        wait_drained(log, *seen)
        block_until(lambda: len(owned(cluster)) == PARTITIONS, "every partition is owned")
        wait_tidy(cluster, "m0", "m1")
        with admin(cluster.zookeeper) as client:
            assert client.get_children(f"/vq/{cluster.name}/brokers/b1/nodes") == ["n1"]
    claims, commits = group_evidence(zookeeper.directory / "server-1", cluster.name, GROUP, "t")
    judge_run(
        histories,
        log,
        Fault("cut", sum(len(link.cuts) for link in links), strikes=cuts),
        acknowledged_min=50,
        group=True,
        drained=True,
        repeats_allowed=True,
        claims=claims,
        commits=commits,
    )


def test_the_death_of_a_leader_is_not_noticed_by_messages(
    make_zookeeper: Callable[..., EmbeddedZooKeeper], tmp_path: Path
) -> None:
    """Three servers; the leader is killed again and again, and may come back without its data."""
    rng = make_rng()
    kills = times(1, 50)
    elected = 0
    histories = tmp_path / "h"
    zookeeper = make_zookeeper(servers=3)
    with ExitStack() as stack:
        cluster = stack.enter_context(process_cluster(tmp_path / "brokers", zookeeper.hosts))
        start_broker(cluster, tmp_path, session_timeout_s=10.0)
        factory = stack.enter_context(client_of(cluster))
        seen = stack.enter_context(member_of(cluster, histories, "m0", session_timeout_s=10.0))
        sender = stack.enter_context(Sender(factory, "t", histories / "s0.jsonl", tick_s=TICK_S))
        block_until(lambda: len(owned(cluster)) == PARTITIONS, "every partition is owned")
        before = owned(cluster)
        sender.wait_sent(50)
        sender.longest_gap_s = 0.0  # without the start
        for _ in range(kills):
            sender.wait_sent(50)
            leader = wait_leader(zookeeper)
            zookeeper.kill(leader)
            sender.wait_sent(50)
            elected += wait_leader(zookeeper) != leader
            if rng.random() < 0.5:
                zookeeper.wipe(leader)
            zookeeper.start()
            wait_leader(zookeeper)
        sender.wait_sent(50)
        assert sender.longest_gap_s < STILL_S, "acknowledgements stood still"
        sender.finish()
        log = read_back(factory, "t")
        wait_drained(log, seen)
        assert owned(cluster) == before, "no session ended"
        wait_tidy(cluster, "m0")
    fault = Fault("leader killed and another elected", elected, strikes=kills)
    judge_run(histories, log, fault, acknowledged_min=50, drained=True)


@pytest.mark.long
def test_a_lost_quorum_ends_no_session(
    make_zookeeper: Callable[..., EmbeddedZooKeeper], tmp_path: Path
) -> None:
    """Three servers, two of them killed: no majority, until they are back. Messages flow on.

    The short form stops a server alone; a story on the simulated cluster takes the majority from a
    group with copies.
    """
    rng = make_rng()
    outages_s = [20.0] * 5 + [90.0] * 5
    rng.shuffle(outages_s)
    session_s = 8.0
    histories = tmp_path / "h"
    zookeeper = make_zookeeper(servers=3)
    more = {"session_timeout_s": session_s}
    with ExitStack() as stack:
        cluster = stack.enter_context(process_cluster(tmp_path / "brokers", zookeeper.hosts))
        start_broker(cluster, tmp_path, **more)
        factory = stack.enter_context(client_of(cluster, **more))
        seen = [
            stack.enter_context(member_of(cluster, histories, name, **more))
            for name in ("m0", "m1")
        ]
        sender = stack.enter_context(Sender(factory, "t", histories / "s0.jsonl", tick_s=TICK_S))
        stalls = stack.enter_context(StallWatch())
        wait_shared(cluster, {"m0", "m1"}, PARTITIONS)
        sender.wait_sent(50)
        before = sessions(cluster)
        faults, back_s, away_s = [], [], []
        for outage_s in outages_s:
            for index in rng.sample(range(3), 2):
                zookeeper.kill(index)
            block_until(lambda: zookeeper.leader() is None, "the last server notices")
            flowed = flow(sender, outage_s)
            assert zookeeper.leader() is None
            faults.append(Fault(f"no quorum for {outage_s:g} s", flowed, strikes=1))
            began = time.monotonic()
            zookeeper.start()
            back_s.append(wait_service(cluster, factory, f"after-{len(faults)}"))
            away_s.append(time.monotonic() - began)
            sender.wait_sent(50)
        print("in service again after", ", ".join(f"{each:.1f}" for each in back_s), "s;")
        print("since the servers were started", ", ".join(f"{each:.1f}" for each in away_s), "s")
        assert max(back_s) < BACK_S
        sender.finish()
        log = read_back(factory, "t")
        wait_drained(log, *seen)
        wait_shared(cluster, {"m0", "m1"}, PARTITIONS)
        changed = sessions(cluster).items() ^ before.items()
        kept = not changed
        assert kept or stalled(stalls, away_s, session_s), f"sessions ended: {sorted(changed)}"
        wait_tidy(cluster, "m0", "m1")
    # No server's log alone is sure to have everything: it was away at times.
    taken = [
        group_evidence(zookeeper.directory / f"server-{number}", cluster.name, GROUP, "t")
        for number in (1, 2, 3)
    ]
    judge_run(
        histories,
        log,
        *faults,
        acknowledged_min=50,
        group=True,
        drained=True,
        repeats_allowed=not kept,
        claims=sorted({claim for claims, _ in taken for claim in claims}),
        commits=sorted({commit for _, commits in taken for commit in commits}),
    )


@pytest.mark.long
def test_a_group_with_copies_goes_on_without_a_majority(
    make_zookeeper: Callable[..., EmbeddedZooKeeper], tmp_path: Path
) -> None:
    """Two of three servers are killed or stopped: no send is refused or unknown meanwhile.

    The lease of the master ends after two seconds. Afterwards it is killed, and the other node has
    all that was acknowledged. The short form is a story on the simulated cluster.
    """
    outages = [("kill", 60.0), ("pause", 60.0)] * 2
    rng = make_rng()
    histories = tmp_path / "h"
    zookeeper = make_zookeeper(servers=3)
    with ExitStack() as stack:
        cluster = stack.enter_context(process_cluster(tmp_path / "brokers", zookeeper.hosts))
        for node in ("n1", "n2"):
            flags = broker_settings(tmp_path / "b1.toml", session_timeout_s=3.0)
            spec = replace(cluster.spec("b1", *flags, node=node), data=tmp_path / node)
            cluster.run(ForkedBroker(spec), name=node)
        cluster.vq_json("topic", "create", "t", "--partitions", str(PARTITIONS))
        factory = stack.enter_context(client_of(cluster, session_timeout_s=90.0))
        sender = stack.enter_context(Sender(factory, "t", histories / "s0.jsonl", tick_s=TICK_S))

        def wait_in_sync() -> None:
            block_until(lambda: len(record(cluster)["insync"]) == 2, "both nodes are in sync")

        faults, away = [], []
        for how, outage_s in outages:
            wait_in_sync()
            sender.wait_sent(50)
            chosen = [wait_leader(zookeeper)]
            chosen.append(rng.choice([each for each in range(3) if each not in chosen]))
            for index in chosen:
                zookeeper.kill(index) if how == "kill" else zookeeper.pause(index)
            begin = time.monotonic()
            flowed = flow(sender, outage_s)
            away.append((begin, time.monotonic()))
            faults.append(Fault(f"no majority for {outage_s:g} s ({how})", flowed, strikes=1))
            for index in chosen:
                if how == "pause":
                    zookeeper.resume(index)
            zookeeper.start()
            wait_leader(zookeeper)
            block_until(lambda: ephemerals(cluster).keys() >= NODES, "both nodes are registered")
        wait_in_sync()
        assert (sender.refused, sender.unknown) == (0, 0)
        before = record(cluster)
        cluster.brokers[before["master"]].kill()
        block_until(lambda: record(cluster)["master"] != before["master"], "another node leads")
        sender.wait_sent(50)
        sender.finish()
        log = read_back(factory, "t")
        cluster.restart(before["master"])
    judge_run(histories, log, *faults, acknowledged_min=50, away=away)


#: What both nodes of group b1 have in ZooKeeper.
NODES = {f"brokers/b1/nodes/{node}" for node in ("n1", "n2")}


def record(cluster: ProcessCluster) -> dict[str, Any]:
    """Return the record of group b1."""
    path = f"/vq/{cluster.name}/brokers/b1/state"
    found: dict[str, Any] = json.loads(cluster.look(lambda client: client.get(path))[0])
    return found
