"""The faults of a slow ZooKeeper: all that nodes and ZooKeeper say to each other comes late.

Clients of the run reach ZooKeeper at once, so that what they are told shows what the nodes do.
Judged is what may be lost, doubled or reordered, and that the group goes on in the end.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from support.chaos.groups import SESSION_TIMEOUT_S
from support.chaos.nemesis import EFFECT_S, Field

#: The least and the most that an answer of ZooKeeper takes. A session of 3 s asks whether it lives
#: every 0.6 to 1 s, and gives its connection up when the answer to the last time is not there.
_ROUND_TRIP_S: Final = (0.06, 0.5)


@contextmanager
def _slow(field: Field) -> Iterator[Callable[[], bool]]:
    """Have ZooKeeper be slow; provide whether anything came late so far."""
    proxies = field.groups.proxies
    assert proxies is not None, "this fault needs proxies"
    struck = proxies.all_to_zookeeper()
    if field.rng.random() < 0.3:  # one node alone is far from ZooKeeper
        struck = proxies.to_zookeeper(field.rng.choice(field.groups.of(field.group())))
    before = sum(each.delayed for each in struck)
    low, high = _ROUND_TRIP_S
    for proxy in struck:
        proxy.delay((low + (high - low) * field.rng.random() ** 2) / 2)
    try:
        time.sleep(field.rng.uniform(0, 2))
        yield lambda: sum(each.delayed for each in struck) > before
    finally:
        for proxy in struck:
            proxy.heal()


def _wait_epoch_after(field: Field, epoch: int) -> None:
    """Wait for the next master, but for ever only once ZooKeeper is slow no more."""
    with suppress(AssertionError):
        field.groups.wait_epoch_after(epoch, timeout_s=EFFECT_S)


def slow_and_killed(field: Field) -> bool:
    """The master is killed, another one leads by the slow ZooKeeper, and the first comes back."""
    groups, group = field.groups, field.group()
    epoch, master = groups.record(group).epoch, groups.master(group)
    with _slow(field) as was_slow:
        died = groups.kill(master)
        _wait_epoch_after(field, epoch)
        groups.start(master)
        time.sleep(field.rng.uniform(0, 4))
        return died and was_slow()


def slow_and_stopped(field: Field) -> bool:
    """The master gets SIGTERM; another one leads, and the first comes back."""
    groups, group = field.groups, field.group()
    epoch, master = groups.record(group).epoch, groups.master(group)
    with _slow(field) as was_slow:
        code = groups.nodes[master].stop(EFFECT_S)
        _wait_epoch_after(field, epoch)
        groups.start(master)
        time.sleep(field.rng.uniform(0, 4))
        return code is not None and was_slow()


def slow_and_switched(field: Field) -> bool:
    """An operator has another node lead; whether that succeeds or not, the group goes on."""
    groups, group = field.groups, field.group()
    with _slow(field) as was_slow:
        groups.cluster.vq("cluster", "switch", group)
        field.load.wait_acknowledged()
        return was_slow()


def slow_and_paused(field: Field) -> bool:
    """The master stands still until its session ends; it wakes up and hears of that late."""
    groups, group = field.groups, field.group()
    epoch, master = groups.record(group).epoch, groups.master(group)
    with _slow(field) as was_slow:
        groups.nodes[master].signal(signal.SIGSTOP)
        _wait_epoch_after(field, epoch)
        time.sleep(field.rng.uniform(0, SESSION_TIMEOUT_S))
        groups.nodes[master].signal(signal.SIGCONT)
        time.sleep(field.rng.uniform(0, 4))
        return was_slow()


def slow_and_a_copy_lost(field: Field) -> bool:
    """A node that copies is killed: it leaves the set, and joins again, by the slow ZooKeeper."""
    groups, group = field.groups, field.group()
    slave = field.rng.choice(groups.slaves(group))
    with _slow(field) as was_slow:
        died = groups.kill(slave)
        field.load.wait_acknowledged()
        groups.start(slave)
        time.sleep(field.rng.uniform(0, 4))
        return died and was_slow()


SHAPES: Final = (
    slow_and_killed,
    slow_and_switched,
    slow_and_stopped,
    slow_and_a_copy_lost,
    slow_and_paused,
)
