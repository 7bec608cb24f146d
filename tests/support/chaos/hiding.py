"""The faults of links that need no network namespaces: proxies swallow what passes.

What a proxy swallows in one direction is lost as in a network that drops it; the connection stays.
A proxy cannot tell the other nodes from the clients: ``cuts`` can.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final

from support.chaos.nemesis import EFFECT_S, Field, lasts_s
from support.chaos.proxies import Proxies
from support.chaos_proxy import DOWN, UP, ChaosProxy

from vq.testing.waiting import block_until

#: Towards the listener, from it, or both.
WAYS: Final = ((UP,), (DOWN,), (UP, DOWN))


def _proxies(field: Field) -> Proxies:
    assert field.groups.proxies is not None, "this fault needs proxies"
    return field.groups.proxies


def _swallow(field: Field, proxies: Sequence[ChaosProxy]) -> bool:
    """Have bytes lost on some proxies in a direction for as long as a cut lasts."""
    before, ways = sum(each.swallowed for each in proxies), field.rng.choice(WAYS)
    for proxy in proxies:
        proxy.swallow(*ways)
    try:
        time.sleep(lasts_s(field))
        block_until(
            lambda: sum(each.swallowed for each in proxies) > before,
            f"bytes are lost {' and '.join(ways)}",
            timeout_s=EFFECT_S,
        )
    finally:
        for proxy in proxies:
            proxy.heal()
    return True


def hide_zookeeper_from_master(field: Field) -> bool:
    """The master and ZooKeeper do not hear each other, or one does not hear the other."""
    return _swallow(field, _proxies(field).to_zookeeper(field.groups.master(field.group())))


def hide_zookeeper_from_slave(field: Field) -> bool:
    """The same with a node that copies."""
    slave = field.rng.choice(field.groups.slaves(field.group()))
    return _swallow(field, _proxies(field).to_zookeeper(slave))


def hide_master(field: Field) -> bool:
    """Nobody but ZooKeeper reaches the master, or nobody hears its answers."""
    return _swallow(field, _proxies(field).before(field.groups.master(field.group())))


def isolate_master(field: Field) -> bool:
    """The master is cut off from everybody, in one direction or both."""
    proxies, master = _proxies(field), field.groups.master(field.group())
    return _swallow(field, [*proxies.before(master), *proxies.to_zookeeper(master)])


SHAPES: Final[tuple[Callable[[Field], bool], ...]] = (
    hide_zookeeper_from_master,
    hide_zookeeper_from_slave,
    hide_master,
    isolate_master,
)
