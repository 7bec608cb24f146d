"""The table of fault runs: which faults strike which cluster, and how often in the long form."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from support.chaos import (
    clocks,
    cuts,
    heirs,
    hiding,
    nemesis,
    network,
    pairs,
    slowness,
    truncation,
    wall,
)
from support.chaos.nemesis import Fault

C2: Final = MappingProxyType({"b1": 2})
C3: Final = MappingProxyType({"b1": 3})
C2X2: Final = MappingProxyType({"b1": 2, "b2": 2})
_MIB: Final = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row.

    Attributes:
        name: As in the plan of tests.
        about: What strikes, for people.
        faults: They strike in turn; at random with ``mixed``.
        nodes: The groups and how many nodes each has.
        servers: How many ZooKeeper servers.
        strikes: How many faults the long form has in all, and how many one run has.
        cuts: Needs network namespaces.
        proxies: Each node has proxies around it.
        slow: Each node has proxies before ZooKeeper, which can be slow.
        clocks: The wall clock of each node can be set; needs libfaketime.
        steady: No fault is a reason for a new master.
        disk_bytes: Each node has a disk of its own of this size; 0: the disk of the machine.
        brief: Faults last for seconds at most.
        repeats: Members may lose their sessions, so messages may be delivered again.
        delayed: A producer delays its messages and cancels some. No clock is set wrong.
        transactors: So many producers make transactions.
        sharers: So many processes are members of a shared group.
    """

    name: str
    about: str
    faults: tuple[Fault, ...]
    nodes: Mapping[str, int] = field(default_factory=lambda: C2)
    servers: int = 1
    strikes: int = 20
    per_run: int = 10
    mixed: bool = False
    cuts: bool = False
    proxies: bool = False
    slow: bool = False
    clocks: bool = False
    steady: bool = False
    disk_bytes: int = 0
    brief: bool = False
    repeats: bool = False
    delayed: bool = False
    transactors: int = 0
    sharers: int = 0

    def why_not(self) -> str:
        """Return what this machine lacks for the row, "" if nothing."""
        if self.clocks and wall.why_not():
            return wall.why_not()
        if self.cuts and not network.entered():
            return f"no network namespaces for us: {network.why_not()}"
        return ""


_ANYWHERE: Final = (
    nemesis.kill_master,
    nemesis.kill_slave,
    nemesis.kill_all,
    nemesis.terminate_master,
    nemesis.pause_master,
    nemesis.start_at_once,
    nemesis.start_second,
    nemesis.empty_slave,
    nemesis.slow_disk,
    nemesis.rot_slave,
    nemesis.replace_disk,
)

ROWS: Final = {
    row.name: row
    for row in (
        Row(
            name="T-KILL",
            about="SIGKILL of the master, back after 2 to 8 s",
            faults=(nemesis.kill_master,),
            nodes=C3,
            strikes=200,
            per_run=20,
            delayed=True,
        ),
        Row(
            name="T-KILLALL",
            about="SIGKILL of all nodes within 200 ms, back in a random order",
            faults=(nemesis.kill_all,),
            strikes=50,
            delayed=True,
        ),
        Row(
            name="T-RESTART",
            about="SIGKILL of all nodes and of ZooKeeper, all back at once",
            faults=(nemesis.restart_all,),
            nodes=C2X2,
            repeats=True,
        ),
        Row(
            name="T-GRACE",
            about="SIGTERM of the master, and a start",
            faults=(nemesis.terminate_master,),
            strikes=100,
        ),
        Row(
            name="T-STOP",
            about="SIGSTOP of the master for 0.5 to 3 session time-outs",
            faults=(nemesis.pause_master,),
            strikes=100,
            delayed=True,
        ),
        Row(
            name="T-PART",
            about="links cut, in one direction or both, of some peers or all, 2 to 20 s",
            faults=cuts.SHAPES,
            nodes=C3,
            strikes=96,
            per_run=8,
            cuts=True,
            delayed=True,
        ),
        Row(
            name="T-PROXY",
            about="the same without namespaces: proxies swallow what a node sends or hears",
            faults=hiding.SHAPES,
            nodes=C3,
            strikes=40,
            per_run=8,
            proxies=True,
        ),
        Row(
            name="T-PAIR",
            about="a link silent between two of three nodes over two changes of the master",
            faults=(pairs.silent_link_first_cut_off, pairs.silent_link_first_paused),
            nodes=C3,
            strikes=40,
            cuts=True,
        ),
        Row(
            name="T-SLOWZK",
            about="ZooKeeper answers nodes after 0.06 to 0.5 s; they are killed, stopped, switched",
            faults=slowness.SHAPES,
            nodes=C3,
            strikes=40,
            slow=True,
        ),
        Row(
            name="T-HEIR",
            about="a node in sync is nearly full, and the master is killed, stopped or full, too",
            faults=heirs.SHAPES,
            nodes=C3,
            strikes=40,
            disk_bytes=256 * _MIB,
            delayed=True,
        ),
        Row(
            name="T-CLOCK",
            about="the wall clock of one node steps by 10 s or an hour, or runs ten times as fast",
            faults=(clocks.step_wall, clocks.run_wall),
            strikes=20,
            clocks=True,
            steady=True,
        ),
        Row(
            name="T-TX",
            about="producers make transactions over two groups; masters killed, paused, cut off",
            faults=(
                nemesis.kill_master,
                cuts.cut_master_from_clients,
                nemesis.pause_master,
                cuts.cut_master_from_zookeeper,
                nemesis.kill_all,
                nemesis.terminate_master,
            ),
            nodes=C2X2,
            strikes=60,
            per_run=12,
            cuts=True,
            transactors=3,
        ),
        Row(
            name="T-SHARED",
            about="a shared group; its members and the masters are killed, paused, cut off",
            faults=(
                nemesis.kill_master,
                nemesis.kill_sharer,
                nemesis.pause_master,
                nemesis.pause_sharer,
                cuts.cut_master_from_clients,
                nemesis.kill_all,
                nemesis.kill_sharer,
                cuts.cut_master_from_zookeeper,
                nemesis.terminate_master,
            ),
            nodes=C3,
            strikes=54,
            per_run=9,
            cuts=True,
            sharers=3,
        ),
        Row(
            name="T-ZK",
            about="ZooKeeper's leader killed or paused; quorum lost for 1 to 8 s; resets",
            faults=(
                cuts.kill_zookeeper_leader,
                cuts.reset_zookeeper_connections,
                cuts.lose_quorum_shortly,
                cuts.reset_zookeeper_connections,
                cuts.pause_zookeeper,
            ),
            nodes=C2X2,
            servers=3,
            strikes=100,
            cuts=True,
            repeats=True,
        ),
        Row(
            name="T-QUORUM",
            about="ZooKeeper's quorum lost for a minute; no send is refused or unknown",
            faults=(cuts.lose_quorum,),
            nodes=C2X2,
            servers=3,
            strikes=10,
            per_run=5,
            repeats=True,
        ),
        Row(
            name="T-BOOT",
            about="start before the old session ends; a second process; lost and swapped disks",
            faults=(
                nemesis.start_at_once,
                nemesis.start_second,
                nemesis.empty_slave,
                nemesis.swap_directories,
            ),
            strikes=80,
            per_run=8,
        ),
        Row(
            name="T-MEMB",
            about="a node joins and leaves, or gets an empty disk, and the master is killed",
            faults=(nemesis.add_node, nemesis.replace_disk, nemesis.kill_master),
            strikes=60,
            per_run=6,
        ),
        Row(
            name="T-SLOWD",
            about="each flush of one node takes 0.2 to 2 s",
            faults=(nemesis.slow_disk,),
        ),
        Row(
            name="T-FULL",
            about="a stranger fills the disk of one node",
            faults=(nemesis.fill_disk,),
            disk_bytes=256 * _MIB,
            per_run=5,
        ),
        Row(
            name="T-ROT",
            about="one bit of a slave's log flips",
            faults=(nemesis.rot_slave,),
            nodes=C3,
        ),
        Row(
            name="T-TRUNC",
            about="an operator has a node lead that lacks messages: who had read them is told",
            faults=(truncation.force_unclean,),
        ),
        Row(
            name="T-MIX",
            about="all of the above at random",
            faults=(*_ANYWHERE, *cuts.SHAPES, cuts.reset_zookeeper_connections),
            nodes=C3,
            strikes=60,
            mixed=True,
            cuts=True,
            repeats=True,
        ),
        Row(
            name="SHORT",
            about="the form that `make test` runs: one of each; `test_copies` kills masters",
            faults=(cuts.cut_master_from_all_but_clients, nemesis.pause_master),
            nodes=C3,
            strikes=2,
            per_run=2,
            cuts=True,
            brief=True,
            delayed=True,
            transactors=1,
            sharers=2,
        ),
    )
}
