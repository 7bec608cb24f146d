"""The fault of one link of three nodes that is silent, while the master changes from end to end.

    first leads, without ZooKeeper ── third lags ── the link first–last falls silent
                                                       │
        all come back ◀── its heir, too ◀── the next master is killed ◀── another node leads

Whatever the ends of the link told each other before says nothing of what they have in a later
epoch: logs are cut meanwhile. Nobody else notices the link: ZooKeeper, clients and the third node
reach both ends.
"""

import signal
import time
from contextlib import suppress
from typing import Final

from support.chaos.cuts import ports_of_zookeeper
from support.chaos.groups import SESSION_TIMEOUT_S
from support.chaos.nemesis import Field
from support.chaos.network import Network

from vq.testing.waiting import block_until

#: A master that ends may have no heir: the only one is behind the silent link, and out of the set.
_HEIR_S: Final = 4 * SESSION_TIMEOUT_S
#: So long a node may need to come back into the set, while the link is silent.
_REJOIN_S: Final = 3 * SESSION_TIMEOUT_S


def silent_link_first_cut_off(field: Field) -> bool:
    """The first master lives on without ZooKeeper until another one leads, which is killed."""
    return _silent_link(field, paused=False)


def silent_link_first_paused(field: Field) -> bool:
    """The first master stands still until another one leads, which is killed."""
    return _silent_link(field, paused=True)


def _silent_link(field: Field, *, paused: bool) -> bool:
    groups, group, rng = field.groups, field.group(), field.rng
    network = groups.network
    assert network is not None, "this fault needs network namespaces"
    first, begin = groups.master(group), groups.record(group).epoch
    third, last = rng.sample(groups.slaves(group), 2)
    home, link, other = network.link(first), network.link(last), network.link(third)
    try:
        home.cut(Network.hub, ports=ports_of_zookeeper(field))  # so it puts nobody out of the set
        other.cut(home.address)  # what comes now is on the other two alone
        time.sleep(rng.uniform(0, 1.0))
        link.cut(home.address)
        if paused:
            groups.nodes[first].signal(signal.SIGSTOP)
        groups.wait_epoch_after(begin, group)
        home.heal()
        other.heal()
        groups.nodes[first].signal(signal.SIGCONT)
        # With the third one as master, both ends of the silent link are in sync with it.
        with suppress(AssertionError):
            block_until(lambda: _insync(field, first), "", timeout_s=_REJOIN_S)
        time.sleep(rng.choice((0.0, rng.uniform(0, 1.5))))
        _kill_master(field)
        if rng.random() < 0.5:
            time.sleep(rng.uniform(0, 1.5))
            _kill_master(field)
        changes = groups.record(group).epoch - begin
    finally:
        dropped = sum(link.heal())
        groups.heal()
    groups.wait_epoch_after(begin + 1, group)
    return dropped > 0 and changes > 0


def _insync(field: Field, name: str) -> bool:
    group, _, node = name.partition("/")
    return node in field.groups.record(group).insync


def _kill_master(field: Field) -> None:
    """SIGKILL of whoever leads; return once another one does, or nobody can."""
    groups, group = field.groups, field.group()
    epoch, master = groups.record(group).epoch, groups.master(group)
    groups.kill(master)
    with suppress(AssertionError):
        groups.wait_epoch_after(epoch, group, timeout_s=_HEIR_S)
