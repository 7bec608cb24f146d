"""The faults that strike processes, disks and members; ``cuts`` has those of links and ZooKeeper.

A fault is a function of the ``Field``: it strikes, ends what lasts, and returns whether it had an
effect. The nodes that it stopped run again when it returns, but need not be in sync.
"""

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from support.block_files import read_partition
from support.chaos.groups import SESSION_TIMEOUT_S, TOPIC, Groups
from support.chaos.load import Load
from support.chaos.shared import LEASE_S
from support.strace import attached

from vq.devtools.processes import BrokerChild
from vq.devtools.zookeeper import EmbeddedZooKeeper
from vq.model import Address
from vq.testing.waiting import block_until

#: A fault that takes longer to show than this did not have the effect that it should have.
EFFECT_S: Final = 60.0


@dataclass
class Field:
    """What faults strike."""

    groups: Groups
    load: Load
    zookeeper: EmbeddedZooKeeper
    rng: random.Random
    brief: bool = False  # what may last long lasts until it shows
    added: int = 0  # nodes so far, each with a name of its own
    #: From when to when ZooKeeper was away, and nothing else was wrong, by the monotonic clock.
    away: list[tuple[float, float]] = field(default_factory=list)

    def group(self) -> str:
        """Return one of the groups."""
        return self.rng.choice(self.groups.groups)


Fault = Callable[[Field], bool]


def lasts_s(field: Field) -> float:
    """Return how long a cut lasts: 2 to 20 s, short ones likelier."""
    return 2 + 18 * field.rng.random() ** 2


def outlast(field: Field, epoch: int, group: str, seconds: float) -> None:
    """Wait as long as a fault of a master lasts: ``seconds``; in a brief run, until another leads.

    ZooKeeper ends a session some time after its time-out, and a node that still is heard there
    notices later that it hears nothing: no number of seconds is long enough on every machine.
    """
    if field.brief:
        field.groups.wait_epoch_after(epoch, group)
    else:
        time.sleep(seconds)


# Members of a shared group --------------------------------------------------------------------
def kill_sharer(field: Field) -> bool:
    """SIGKILL of a member of the shared group; another one begins."""
    assert field.load.sharers is not None
    return field.load.sharers.kill(field.rng)


def pause_sharer(field: Field) -> bool:
    """SIGSTOP of a member of the shared group for longer than its leases last, or not quite."""
    assert field.load.sharers is not None
    return field.load.sharers.pause(field.rng, LEASE_S * field.rng.uniform(0.8, 2))


# Processes ------------------------------------------------------------------------------------
def kill_master(field: Field) -> bool:
    """SIGKILL of the master at a random moment, and a start 2 to 8 s later."""
    field.load.wait_acknowledged(field.rng.randrange(1, 60))
    groups, group = field.groups, field.group()
    before, master = groups.record(group), groups.master(group)
    begin = time.monotonic()
    died = groups.kill(master)
    after = groups.wait_epoch_after(before.epoch, group)
    away_s = 0.0 if field.brief else field.rng.uniform(2, 8)
    time.sleep(max(0.0, begin + away_s - time.monotonic()))
    groups.start(master)
    return died and f"{group}/{after.master}" != master


def kill_slave(field: Field) -> bool:
    """SIGKILL of a node that copies, and a start up to 6 s later: it leaves the set, and joins."""
    groups = field.groups
    slave = field.rng.choice(groups.slaves(field.group()))
    died = groups.kill(slave)
    time.sleep(field.rng.uniform(0, 6))
    groups.start(slave)
    return died


def kill_all(field: Field) -> bool:
    """SIGKILL of all nodes of a group within 200 ms; they start in a random order."""
    groups, group = field.groups, field.group()
    names = groups.of(group)
    field.rng.shuffle(names)
    died = []
    for name in names:
        died.append(groups.kill(name))
        time.sleep(field.rng.uniform(0, 0.2 / len(names)))
    field.rng.shuffle(names)
    for name in names:
        groups.start(name)
        time.sleep(field.rng.uniform(0, 2))
    return all(died)


def restart_all(field: Field) -> bool:
    """SIGKILL of every node of every group, and of ZooKeeper; all start at once."""
    groups = field.groups
    died = groups.kill(*sorted(groups.wanted))
    field.zookeeper.kill()
    for name in sorted(groups.wanted):
        groups.start(name)
    field.zookeeper.start()
    return died


def terminate_master(field: Field) -> bool:
    """SIGTERM of the master: it ends in order, another node leads, and it starts again."""
    groups, group = field.groups, field.group()
    before, master = groups.record(group), groups.master(group)
    code = groups.nodes[master].stop()
    gone = not groups.registered(master)
    groups.wait_epoch_after(before.epoch, group)
    groups.start(master)
    return code == 0 and gone


def pause_master(field: Field) -> bool:
    """SIGSTOP of the master for 0.5 to 3 session time-outs; clients keep their connections."""
    groups, group = field.groups, field.group()
    epoch, master = groups.record(group).epoch, groups.master(group)
    groups.nodes[master].signal(signal.SIGSTOP)
    block_until(lambda: groups.stopped(master), f"{master} is stopped", timeout_s=EFFECT_S)
    outlast(field, epoch, group, SESSION_TIMEOUT_S * field.rng.uniform(0.5, 3))
    held = groups.stopped(master)
    groups.nodes[master].signal(signal.SIGCONT)
    return held


# Starts ---------------------------------------------------------------------------------------
def start_at_once(field: Field) -> bool:
    """A node is killed and starts before ZooKeeper has ended its old session."""
    groups = field.groups
    name = field.rng.choice(groups.of(field.group()))
    died = groups.kill(name)
    old = groups.registered(name)
    groups.start(name)
    return died and old


def start_second(field: Field) -> bool:
    """A second process on the directory of a node ends with an error; the first one goes on."""
    groups = field.groups
    name = field.rng.choice(groups.of(field.group()))
    first = groups.nodes[name]
    spec = replace(first.spec, address=Address(first.spec.address.host, 0))
    second = BrokerChild(spec)
    second.start()
    code = second.wait(EFFECT_S)
    return code not in {0, None, -signal.SIGKILL} and first.running


def empty_slave(field: Field) -> bool:
    """A node that copies loses its disk; the master is killed, and is away for longer or shorter.

    The node may lead only when it has copied all. While the record still names its old directory,
    it ends at its start, and ``wait_whole`` starts it again.
    """
    groups, group = field.groups, field.group()
    master, slave = groups.master(group), field.rng.choice(groups.slaves(group))
    died = groups.kill(slave)
    had = any(groups.data(slave).rglob("*.block"))
    groups.empty(slave)
    groups.start(slave)
    time.sleep(field.rng.uniform(0, 1.5))
    died = groups.kill(master) and died
    time.sleep(field.rng.uniform(0, 8))
    groups.start(master)
    return died and had


def swap_directories(field: Field) -> bool:
    """Two stopped nodes get each other's directories: both must end, and serve nothing."""
    groups, group = field.groups, field.group()
    one, other = field.rng.sample(groups.of(group), 2)
    died = groups.kill(one, other)
    _swap(groups.data(one), groups.data(other))
    codes = []
    for name in (one, other):
        groups.start(name)
        codes.append(groups.nodes[name].wait(EFFECT_S))
    _swap(groups.data(one), groups.data(other))
    for name in (one, other):
        groups.start(name)
    return died and all(code not in {0, None, -signal.SIGKILL} for code in codes)


def _swap(one: Path, other: Path) -> None:
    aside = one.with_name(one.name + ".aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


# Members --------------------------------------------------------------------------------------
def add_node(field: Field) -> bool:
    """A new node copies all and joins, while the master is killed; then the node leaves for good.

    The master is killed at a random moment of that, so the new node may be in sync or not.
    """
    groups, group = field.groups, field.group()
    before = groups.record(group)
    field.added += 1
    name = f"{group}/x{field.added}"
    groups.add(name)
    time.sleep(field.rng.uniform(0, 3))
    master = groups.master(group)
    died = groups.kill(master)
    groups.wait_epoch_after(before.epoch, group)
    groups.start(master)
    groups.wait_whole()
    joined = name.partition("/")[2] in groups.record(group).insync
    groups.wanted.discard(name)
    groups.nodes[name].stop()
    block_until(
        lambda: name.partition("/")[2] not in groups.record(group).insync,
        f"{name} leaves the set",
        timeout_s=EFFECT_S,
    )
    return died and joined


def replace_disk(field: Field) -> bool:
    """A node that copies is stopped for good, and comes back with an empty disk."""
    groups = field.groups
    slave = field.rng.choice(groups.slaves(field.group()))
    groups.nodes[slave].stop()
    had = any(groups.data(slave).rglob("*.block"))
    groups.empty(slave)
    groups.start(slave)
    return had


# Disks ----------------------------------------------------------------------------------------
def slow_disk(field: Field) -> bool:
    """Every flush of one node takes 0.2 to 2 s for some seconds."""
    groups = field.groups
    name = field.rng.choice(groups.of(field.group()))
    delay_us = int(field.rng.uniform(0.2, 2.0) * 1_000_000)
    trace = groups.data(name).with_suffix(".strace")
    calls = "trace=fdatasync,fsync,syncfs"
    inject = f"inject=fdatasync,fsync,syncfs:delay_enter={delay_us}"
    with attached(groups.nodes[name].pid, trace, "-e", calls, "-e", inject):
        time.sleep(field.rng.uniform(3, 8))
    return "DELAYED" in trace.read_text()


def fill_disk(field: Field) -> bool:
    """A stranger takes all space of one node's disk for some seconds; see ``Row.disk_bytes``."""
    groups = field.groups
    name = field.rng.choice(groups.of(field.group()))
    stranger = groups.data(name) / "stranger"
    with stranger.open("wb") as file, suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
            file.flush()
    full = shutil.disk_usage(stranger.parent).free < 1 << 16
    time.sleep(field.rng.uniform(3, 8))
    stranger.unlink()
    return full


def rot_slave(field: Field) -> bool:
    """A bit of a stopped slave's log flips, far from its end, and the slave starts again.

    The damaged node must not lead with the damage. An operator gives it an empty disk if it has
    not repaired itself within some seconds.
    """
    field.load.wait_acknowledged(100)  # so that a log has some batches
    groups, group = field.groups, field.group()
    slave = field.rng.choice(groups.slaves(group))
    died = groups.kill(slave)
    flipped = _flip(groups.data(slave), field.rng)
    groups.start(slave)
    with suppress(AssertionError):
        groups.wait_whole(timeout_s=15.0)
    damaged = [
        number
        for number in groups.data(slave).glob(f"{TOPIC}/[0-9]*")
        if read_partition(number).damage
    ]
    if damaged:
        groups.kill(slave)
        groups.empty(slave)
        groups.start(slave)
    return died and flipped


def _flip(data: Path, rng: random.Random) -> bool:
    """Flip one bit in the first half of the largest partition's blocks; whether there was one."""
    directories = sorted(data.glob(f"{TOPIC}/[0-9]*"))
    ends = {each: read_partition(each).batches for each in directories}
    largest = max(directories, key=lambda each: len(ends[each]), default=None)
    if largest is None or len(ends[largest]) < 4:
        return False
    start, end = rng.choice(ends[largest][: len(ends[largest]) // 2])
    block = max(
        (path for path in largest.glob("*.block") if int(path.stem) <= start),
        key=lambda path: int(path.stem),
    )
    position = rng.randrange(start, end) - int(block.stem)
    fd = os.open(block, os.O_RDWR)
    try:
        byte = os.pread(fd, 1, position)[0]
        os.pwrite(fd, bytes([byte ^ 1 << rng.randrange(8)]), position)
        os.fsync(fd)
    finally:
        os.close(fd)
    return True
