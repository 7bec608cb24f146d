"""ZooKeeper stops, loses its leader, is cut off, ends sessions - while messages flow.

    sender ──▶ broker ──▶ members of a group        each has its own link to ZooKeeper
       ╲         │          ╱
        ╲     ZooKeeper    ╱

Goal: nothing is lost, doubled or skipped; masters and clients with cached routes go on; everything
finds its way back by itself and leaves no node behind that belongs to nobody.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.chaos_proxy import DOWN, UP, ChaosProxy
from support.cluster import ProcessCluster, process_cluster
from support.faults import (
    LONG,
    Sender,
    broker_settings,
    client_of,
    make_rng,
    member_of,
    owners,
    read_back,
    settle,
    times,
    until,
    wait_drained,
)
from support.judge import Fault
from support.zookeeper import admin
from support.zookeeper_log import group_evidence

from vq.coordination.embedded import EmbeddedZooKeeper
from vq.model import Address

pytestmark = pytest.mark.slow

PARTITIONS = 4
GROUP = "g"
SESSION_S = 1.5


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
    with admin(cluster.zookeeper) as client:
        stat = client.exists(f"/vq/{cluster.name}/{path}")
        return stat.ephemeralOwner if stat is not None else 0


def slots(cluster: ProcessCluster) -> set[int]:
    """Return the sessions that hold a message-id slot."""
    with admin(cluster.zookeeper) as client:
        root = f"/vq/{cluster.name}/slots"
        found = [client.exists(f"{root}/{name}") for name in client.get_children(root)]
        return {stat.ephemeralOwner for stat in found if stat is not None}


def test_messages_flow_while_zookeeper_is_stopped(own, tmp_path: Path) -> None:
    """Stopped for longer than a session: acknowledgements go on, and nothing is repeated.

    Sessions outlive it, unless the machine is too busy to bring them back in time; then members
    begin anew where they committed.
    """
    zookeeper, cluster = own
    outages_s = [20.0, 20.0, 90.0] if LONG else [6.0]
    session_s = 10.0 if LONG else 4.0  # enough for a busy machine to come back
    start_broker(cluster, tmp_path, session_timeout_s=session_s)
    histories = tmp_path / "h"
    more = {"session_timeout_s": session_s}
    with (
        client_of(cluster, **more) as factory,
        member_of(cluster, histories, "m0", **more) as seen0,
        member_of(cluster, histories, "m1", **more) as seen1,
        Sender(factory, "t", histories / "s0.jsonl") as sender,
    ):
        until(lambda: {name for name, _ in owned(cluster).values()} == {"m0", "m1"}, "both own")
        until(lambda: len(owned(cluster)) == PARTITIONS, "every partition is owned")
        before = owned(cluster)
        sender.wait_sent(50)
        during = 0
        for outage_s in outages_s:
            zookeeper.kill()
            flowing = sender.sent
            sender.wait_sent(int(400 * outage_s * 0.9), timeout_s=outage_s * 3)
            during += sender.sent - flowing
            zookeeper.start()
            sender.wait_sent(50)
        assert sender.longest_gap_s < min(outages_s) / 2, "acknowledgements stood still"
        sender.finish()
        log = read_back(factory, "t")
        wait_drained(log, seen0, seen1)
        until(lambda: len(owned(cluster)) == PARTITIONS, "every partition is owned again")
        kept = owned(cluster) == before
    claims, commits = group_evidence(zookeeper.directory / "server-1", cluster.name, GROUP, "t")
    settle(
        histories,
        log,
        Fault("acknowledged without ZooKeeper", during),
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
    faults = []
    with ExitStack() as stack:
        server = Address.parse(zookeeper.hosts)
        links = [stack.enter_context(ChaosProxy(server)) for _ in range(3)]
        to_broker, to_producer, to_member = links
        start_broker(cluster, tmp_path, zookeeper=str(to_broker.address))
        factory = stack.enter_context(
            client_of(cluster, zookeeper=str(to_producer.address), session_timeout_s=SESSION_S)
        )
        sender = stack.enter_context(Sender(factory, "t", histories / "s0.jsonl"))
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
        until(lambda: len(owned(cluster)) == PARTITIONS, "every partition is owned")
        sender.wait_sent(50)

        def expire(
            name: str, link: ChaosProxy, session: Callable[[], int], *, flowing: bool = True
        ) -> None:
            old = session()
            assert old
            link.swallow()
            until(lambda: session() != old, f"ZooKeeper ends the session of the {name}")
            if flowing:
                sender.wait_sent(20)
            link.heal()
            until(lambda: session() not in {0, old}, f"the {name} has a session again")
            sender.wait_sent(50)
            faults.append(Fault(f"session of the {name} ended", 1))

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
            until(
                lambda: (
                    {name for name, _ in owned(cluster).values()} == {"m0", "m1"}
                    and len(owned(cluster)) == PARTITIONS
                ),
                "the member has its share again",
            )
        sender.finish()
        log = read_back(factory, "t")
        wait_drained(log, seen0, seen1)
    claims, commits = group_evidence(zookeeper.directory / "server-1", cluster.name, GROUP, "t")
    settle(
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
    cuts = times(12, 200)
    histories = tmp_path / "h"
    with ExitStack() as stack:
        server = Address.parse(zookeeper.hosts)
        links = [stack.enter_context(ChaosProxy(server)) for _ in range(2)]
        start_broker(cluster, tmp_path, zookeeper=str(links[0].address), session_timeout_s=4.0)
        factory = stack.enter_context(client_of(cluster))
        sender = stack.enter_context(Sender(factory, "t", histories / "s0.jsonl"))
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
            sender.wait_sent(5)
        sender.wait_sent(50)
        sender.finish()
        log = read_back(factory, "t")
        wait_drained(log, *seen)
        until(lambda: len(owned(cluster)) == PARTITIONS, "every partition is owned")
        with admin(cluster.zookeeper) as client:
            root = f"/vq/{cluster.name}"
            assert client.get_children(f"{root}/brokers/b1/nodes") == ["n1"]
            assert sorted(client.get_children(f"{root}/consumers/{GROUP}/members")) == ["m0", "m1"]
            assert len(client.get_children(f"{root}/slots")) == 1
    claims, commits = group_evidence(zookeeper.directory / "server-1", cluster.name, GROUP, "t")
    settle(
        histories,
        log,
        Fault("cut", sum(len(link.cuts) for link in links)),
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
    kills = times(2, 50)
    histories = tmp_path / "h"
    zookeeper = make_zookeeper(servers=3)
    with ExitStack() as stack:
        cluster = stack.enter_context(process_cluster(tmp_path / "brokers", zookeeper.hosts))
        start_broker(cluster, tmp_path, session_timeout_s=10.0)
        factory = stack.enter_context(client_of(cluster))
        seen = stack.enter_context(member_of(cluster, histories, "m0", session_timeout_s=10.0))
        sender = stack.enter_context(Sender(factory, "t", histories / "s0.jsonl"))
        until(lambda: len(owned(cluster)) == PARTITIONS, "every partition is owned")
        before = owned(cluster)
        for _ in range(kills):
            sender.wait_sent(50)
            leader = zookeeper.leader()
            assert leader is not None
            zookeeper.kill(leader)
            sender.wait_sent(50)
            if rng.random() < 0.5:
                zookeeper.wipe(leader)
            zookeeper.start()
            until(lambda: zookeeper.leader() is not None, "a new leader")
        sender.wait_sent(50)
        assert sender.longest_gap_s < 5.0, "acknowledgements stood still"
        sender.finish()
        log = read_back(factory, "t")
        wait_drained(log, seen)
        assert owned(cluster) == before, "no session ended"
    settle(histories, log, Fault("leader killed", kills), acknowledged_min=50, drained=True)
