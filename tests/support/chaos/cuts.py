"""The faults of links and of ZooKeeper. See ``nemesis`` for what a fault is.

Cuts need nodes in network namespaces: they drop packets, and count what they dropped.
"""

import time
from collections.abc import Callable
from typing import Final

from support.chaos.nemesis import EFFECT_S, Field, lasts_s, outlast
from support.chaos.network import Link, Network
from support.faults import wait_leader

from vq.testing.waiting import block_until

WAYS: Final = ("both", "in", "out")


def _network(field: Field) -> Network:
    assert field.groups.network is not None, "this fault needs network namespaces"
    return field.groups.network


def _link(field: Field, name: str) -> Link:
    return _network(field).link(name)


def ports_of_zookeeper(field: Field) -> list[int]:
    """Return the ports of ZooKeeper."""
    hosts = field.zookeeper.hosts.split(",")
    return [int(host.rpartition(":")[2]) for host in hosts]


def _hold(field: Field, link: Link) -> bool:
    """Wait for as long as a cut lasts, then heal; whether the link dropped something."""
    time.sleep(lasts_s(field))
    return sum(link.heal()) > 0


def cut_master_from_zookeeper(field: Field) -> bool:
    """The master and ZooKeeper do not hear each other, or one does not hear the other."""
    link = _link(field, field.groups.master(field.group()))
    link.cut(Network.hub, ways=field.rng.choice(WAYS), ports=ports_of_zookeeper(field))
    return _hold(field, link)


def cut_slave_from_zookeeper(field: Field) -> bool:
    """The same with a node that copies."""
    link = _link(field, field.rng.choice(field.groups.slaves(field.group())))
    link.cut(Network.hub, ways=field.rng.choice(WAYS), ports=ports_of_zookeeper(field))
    return _hold(field, link)


def cut_master_from_slaves(field: Field) -> bool:
    """The master and the nodes that copy do not hear each other; all see ZooKeeper and clients."""
    group = field.group()
    link = _link(field, field.groups.master(group))
    ways = field.rng.choice(WAYS)
    for slave in field.groups.slaves(group):
        link.cut(_link(field, slave).address, ways=ways)
    return _hold(field, link)


def cut_master_from_one_slave(field: Field) -> bool:
    """The master and one node that copies do not hear each other."""
    group = field.group()
    link = _link(field, field.groups.master(group))
    slave = field.rng.choice(field.groups.slaves(group))
    link.cut(_link(field, slave).address, ways=field.rng.choice(WAYS))
    return _hold(field, link)


def cut_master_from_all_but_clients(field: Field) -> bool:
    """Clients alone still reach the master: what it acknowledges then would be lost."""
    group = field.group()
    epoch = field.groups.record(group).epoch
    link = _link(field, field.groups.master(group))
    ways = field.rng.choice(WAYS)
    link.cut(Network.hub, ways=ways, ports=ports_of_zookeeper(field))
    for slave in field.groups.slaves(group):
        link.cut(_link(field, slave).address, ways=ways)
    outlast(field, epoch, group, lasts_s(field))
    return sum(link.heal()) > 0


def cut_master_from_clients(field: Field) -> bool:
    """Clients do not reach the master, which leads on: ZooKeeper and the copies reach it."""
    name = field.groups.master(field.group())
    link, port = _link(field, name), field.groups.nodes[name].spec.address.port
    link.drop_clients(Network.hub, port)
    return _hold(field, link)


def cut_ring(field: Field) -> bool:
    """Each node hears all but the next one: no two nodes see the same rest."""
    names = field.groups.of(field.group())
    links = [_link(field, name) for name in names]
    for link, after in zip(links, [*links[1:], links[0]], strict=True):
        link.cut(after.address, ways="in")
    time.sleep(lasts_s(field))
    dropped = [sum(link.heal()) for link in links]
    return any(dropped)  # not all pairs of nodes talk


def flap(field: Field) -> bool:
    """The link between the master and the others comes and goes."""
    group = field.group()
    link = _link(field, field.groups.master(group))
    dropped = 0
    for _ in range(field.rng.randint(2, 5)):
        for slave in field.groups.slaves(group):
            link.cut(_link(field, slave).address, ways=field.rng.choice(WAYS))
        time.sleep(field.rng.uniform(0.2, 2.5))
        dropped += sum(link.heal())
        time.sleep(field.rng.uniform(0.1, 1.0))
    return dropped > 0


#: The eight shapes of T-PART.
SHAPES: Final[tuple[Callable[[Field], bool], ...]] = (
    cut_master_from_zookeeper,
    cut_slave_from_zookeeper,
    cut_master_from_slaves,
    cut_master_from_one_slave,
    cut_master_from_all_but_clients,
    cut_master_from_clients,
    cut_ring,
    flap,
)


# ZooKeeper ------------------------------------------------------------------------------------
def kill_zookeeper_leader(field: Field) -> bool:
    """SIGKILL of the server that leads the ensemble; it starts once another one leads."""
    zookeeper = field.zookeeper
    leader = wait_leader(zookeeper)
    zookeeper.kill(leader)
    block_until(
        lambda: zookeeper.leader() not in {leader, None}, "another server leads", timeout_s=EFFECT_S
    )
    time.sleep(field.rng.uniform(0, 2))
    zookeeper.start()
    return True


def lose_quorum(field: Field) -> bool:
    """Two of three servers are gone for a minute."""
    return _lose_quorum(field, 60.0)


def lose_quorum_shortly(field: Field) -> bool:
    """Two of three servers are gone for 1 to 8 s: shorter or longer than a session lasts."""
    return _lose_quorum(field, field.rng.uniform(1, 8))


def _lose_quorum(field: Field, seconds: float) -> bool:
    zookeeper = field.zookeeper
    leader = wait_leader(zookeeper)
    gone = [leader, (leader + field.rng.choice((1, 2))) % 3]
    begin = time.monotonic()
    for server in gone:
        zookeeper.kill(server)
    block_until(lambda: zookeeper.leader() is None, "no server leads", timeout_s=EFFECT_S)
    time.sleep(max(0.0, begin + seconds - time.monotonic()))
    away = zookeeper.leader() is None
    field.away.append((begin, time.monotonic()))
    zookeeper.start()
    return away


def pause_zookeeper(field: Field) -> bool:
    """SIGSTOP of the server that leads the ensemble for 1 to 8 s: connections stay, mute."""
    zookeeper = field.zookeeper
    leader = wait_leader(zookeeper)
    zookeeper.pause(leader)
    time.sleep(field.rng.uniform(1, 8))
    zookeeper.resume(leader)
    wait_leader(zookeeper)
    return True


def reset_zookeeper_connections(field: Field) -> bool:
    """The connections of some nodes to ZooKeeper are reset, perhaps in the middle of a request."""
    groups = field.groups
    names = [name for name in sorted(groups.wanted) if field.rng.random() < 0.6]
    links = [_link(field, name) for name in names or sorted(groups.wanted)]
    for link in links:
        link.reset(Network.hub, ports_of_zookeeper(field))
    time.sleep(field.rng.uniform(0.0, 1.3))
    # An idle node sends nothing but a heartbeat, one in a third of its session time-out.
    block_until(lambda: all(sum(link.stopped()) for link in links), "resets", timeout_s=EFFECT_S)
    hit = [sum(link.heal()) for link in links]
    return all(hit)
