"""The faults of full heirs: a node in sync refuses messages for a full disk, and the master goes.

Up to 97 % of its disk a node copies on, so it is in sync and may lead; from 90 % on it would refuse
all that clients send. Another node has space. Who led how long with a full disk is in ZooKeeper's
log; the judge looks there.
"""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from support.chaos.nemesis import EFFECT_S, Field
from support.judge import FULL_MAX_S

from vq.testing.waiting import block_until

#: Beyond what makes a node refuse messages, and below what makes it copy no more.
_FULL: Final = 0.92


@contextmanager
def _full(field: Field, *names: str) -> Iterator[None]:
    """Have a stranger take most of the disks of nodes, until they have told that they are full."""
    groups = field.groups
    strangers = [groups.data(name) / "stranger" for name in names]
    try:
        for stranger in strangers:
            space = shutil.disk_usage(stranger.parent)
            with stranger.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, int(space.total * _FULL) - space.used)
        for name in names:
            block_until(lambda name=name: groups.full(name), f"{name} is full", timeout_s=EFFECT_S)
        yield
    finally:
        for stranger in strangers:
            stranger.unlink(missing_ok=True)
    for name in names:
        block_until(lambda name=name: not groups.full(name), f"{name} is not", timeout_s=EFFECT_S)


def _heir(field: Field) -> str:
    return field.rng.choice(field.groups.slaves(field.group()))


def _watch(field: Field, epoch: int, full: str) -> bool:
    """Wait for a later epoch, and as long as the judge wants to see a full node lead in it.

    Returns:
        Whether the node was full all the time.
    """
    groups, group = field.groups, field.group()
    groups.wait_epoch_after(epoch, group)
    with suppress(AssertionError):
        block_until(lambda: groups.master(group) != full, "", timeout_s=FULL_MAX_S + 2)
    if groups.master(group) != full:
        field.load.wait_acknowledged()
    return groups.full(full)


def kill_before_full_heir(field: Field) -> bool:
    """SIGKILL of the master beside a full node and one with space."""
    groups, group, heir = field.groups, field.group(), _heir(field)
    epoch, master = groups.record(group).epoch, groups.master(group)
    with _full(field, heir):
        time.sleep(field.rng.uniform(0, 1))
        died = groups.kill(master)
        was_full = _watch(field, epoch, heir)
        groups.start(master)
    return died and was_full


def stop_before_full_heir(field: Field) -> bool:
    """SIGTERM of the master beside a full node and one with space."""
    groups, group, heir = field.groups, field.group(), _heir(field)
    epoch, master = groups.record(group).epoch, groups.master(group)
    with _full(field, heir):
        code = groups.nodes[master].stop()
        was_full = _watch(field, epoch, heir)
        groups.start(master)
    return code == 0 and was_full


def switch_before_full_heir(field: Field) -> bool:
    """An operator has another node lead, and names none: one is full, one has space."""
    groups, group, heir = field.groups, field.group(), _heir(field)
    epoch = groups.record(group).epoch
    with _full(field, heir):
        switched = groups.cluster.vq("cluster", "switch", group).returncode == 0
        return _watch(field, epoch, heir) and switched


def fill_master_and_heir(field: Field) -> bool:
    """The master's disk fills up beside a full node and one with space: it hands over."""
    groups, group, heir = field.groups, field.group(), _heir(field)
    epoch, master = groups.record(group).epoch, groups.master(group)
    with _full(field, heir), _full(field, master):
        return _watch(field, epoch, heir) and groups.full(master)


SHAPES: Final = (
    kill_before_full_heir,
    switch_before_full_heir,
    fill_master_and_heir,
    stop_before_full_heir,
)
