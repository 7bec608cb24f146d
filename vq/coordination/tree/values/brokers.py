"""Values below ``brokers``: a group, its state, and its nodes with their loads."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from vq.coordination.tree.coordinator import join
from vq.coordination.tree.paths import BROKERS
from vq.coordination.tree.values.value import Value
from vq.model import check_pool

#: Nodes of a group that are remembered after they left the set of those in sync.
NODES_LEFT_MAX: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerGroup(Value):
    """``brokers/<group>``: the operator's settings of a group.

    ``pool`` is None for the common pool, which ``common`` names, too. No partitions are placed on a
    group that is ``draining``, and a node in ``drained`` leads only if no other one in sync can.
    """

    _what = "broker group"
    _omits = ("drained",)
    pool: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    draining: bool = False
    drained: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "drained", tuple(self.drained))
        object.__setattr__(self, "pool", check_pool(self.pool))

    @staticmethod
    def path(group: str) -> str:
        """Return the group's path."""
        return join(BROKERS, group)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState(Value):
    """``brokers/<group>/state``: the master of the group. Changed by compare-and-set only.

    Invariant: ``epoch`` only rises and ``master`` is in ``insync``. For every node in ``insync``,
    ``incarnations`` has the czxid of its registration, and ``directories`` the identity of the data
    directory with its acknowledged messages.

    Attributes:
        successor: The node to which the master hands over: it may claim the group while the master
            is registered; "": none.
        resigns: The master leaves the in-sync set when its successor claims the group.
        unclean: An operator named ``master``, which may lack acknowledged messages, and it has not
            claimed the group yet.
        left: Nodes that were in sync once and are not, sorted: an operator hears of those that do
            not run. The last ``NODES_LEFT_MAX``; nothing else rests on it.
    """

    _what = "group state"
    _omits = ("successor", "unclean", "left")
    epoch: int
    master: str
    insync: tuple[str, ...]
    incarnations: Mapping[str, int]
    directories: Mapping[str, str] = field(default_factory=dict)
    successor: str = ""
    resigns: bool = False
    unclean: bool = False
    left: tuple[str, ...] = ()

    @property
    def nodes(self) -> frozenset[str]:
        """The nodes that are in sync, or were so once."""
        return frozenset((*self.insync, *self.left))

    @staticmethod
    def path(group: str) -> str:
        """Return the path of the group's state."""
        return join(BROKERS, group, "state")

    def _to_json(self) -> dict[str, Any]:
        values = Value._to_json(self)
        if not self.successor:
            del values["resigns"]
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration(Value):
    """``brokers/<group>/nodes/<node>``: a running broker process; its czxid is its incarnation.

    ``nonce`` identifies our own node after a lost reply. ``directory`` is the identity of the data
    directory, whose lock only one process can hold. ``pid`` is 0 if it is not known. With
    ``lost_power``, messages that the node had counted may have gone with the power of its machine,
    and it had not caught up when it registered (``insync.lacks_messages``). While it is
    ``damaged``, it has damage in its logs; while it is ``full``, it refuses messages for a full
    disk. ``rack`` is where its machine is, for readers that want
    a node near them; "": not told. ``log_end_bytes`` goes with ``lost_power``: where its logs
    ended when it registered, added up.
    """

    _what = "broker node"
    _omits = ("rack", "damaged", "full", "log_end_bytes")
    host: str
    port: int
    metrics_port: int = 0
    started_ms: int = 0
    version: str = ""
    nonce: str = ""
    directory: str = ""
    pid: int = 0
    lost_power: bool = False
    rack: str = ""
    damaged: bool = False
    full: bool = False
    log_end_bytes: int = 0

    @staticmethod
    def parent(group: str) -> str:
        """Return the path that holds the group's nodes."""
        return join(BROKERS, group, "nodes")

    @classmethod
    def path(cls, group: str, node: str) -> str:
        """Return the node's path."""
        return join(cls.parent(group), node)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLoad(Value):
    """``brokers/<group>/load/<node>``: how busy the process is; written again every few seconds.

    Rates, ``busy``, ``queue_depth`` and ``flush_ms`` are averages over some ten seconds. Readers
    tell by the version of the node whether the value is recent: ``time_ms`` is of another clock.

    Attributes:
        time_ms: When it was measured, by the broker's clock.
        disk_bytes_free: Free bytes of the file system of the data directory.
        disk_bytes_total: All its bytes; 0: not known.
        disk_excess_bytes: How many bytes should be deleted early there; 0: none. The master of the
            group reads it, for what it deletes goes on this node, too.
        stored_bytes: Bytes of all logs of this process.
        messages_per_s: Messages that it appends.
        bytes_per_s: Bytes of those.
        busy: The share of time, in [0, 1], in which the busier of event loop and flusher was busy.
        capacity_bytes_per_s: An estimate of the highest ``bytes_per_s``; 0: not known.
        queue_depth: Requests that wait for their answer, mostly PUTs for a flush.
        flush_ms: How long one flush takes; 0: there was none.
        partitions: How many partitions it serves.
    """

    _what = "broker load"
    time_ms: int = 0
    disk_bytes_free: int = 0
    disk_bytes_total: int = 0
    disk_excess_bytes: int = 0
    stored_bytes: int = 0
    messages_per_s: float = 0.0
    bytes_per_s: float = 0.0
    busy: float = 0.0
    capacity_bytes_per_s: float = 0.0
    queue_depth: int = 0
    flush_ms: float = 0.0
    partitions: int = 0

    @property
    def disk_used_ratio(self) -> float | None:
        """The share of the file system in use, in [0, 1], also of odd numbers; None: not known."""
        total = self.disk_bytes_total
        if total <= 0:
            return None
        return 1 - min(max(0, self.disk_bytes_free), total) / total  # too large ones have no float

    @staticmethod
    def parent(group: str) -> str:
        """Return the path that holds the loads of a group's nodes."""
        return join(BROKERS, group, "load")

    @classmethod
    def path(cls, group: str, node: str) -> str:
        """Return the path of the node's load."""
        return join(cls.parent(group), node)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenPartitions(Value):
    """``brokers/<group>/partitions``: how many partitions of ready topics are open on the group.

    Every change of a placement writes it in the same ``multi`` (``open_counts``). If it is missing,
    vq reads and counts the partitions.
    """

    _what = "count of open partitions"
    open: int

    @staticmethod
    def path(group: str) -> str:
        """Return the path of the group's count."""
        return join(BROKERS, group, "partitions")
