"""The tree in ZooKeeper: one class per znode with its path and the format of its value.

Values are small JSON objects that an operator can read with zkCli; each has the format version
``v``. A reader ignores fields that it does not know (an older vq reads a newer value of the same
version) and refuses a higher ``v``. This module does no I/O.

    settings                              ClusterSettings  what operators decided for all of it
    security/secret                       ClusterSecret   by which brokers know each other
    brokers/<group>                       BrokerGroup     pool, labels, draining or not
      state                               GroupState      epoch, master, insync, incarnations
      nodes/<node>            ephemeral   BrokerNode      where the process listens
      load/<node>             ephemeral   BrokerLoad      how busy it is
      partitions                          OpenPartitions  how many partitions are open on it
    topics/<topic>                        Topic           id, settings, phase
      partitions                          PlacementChanges  recently changed partitions
        <n>                               Partition       placement spans, state
    audit/unclean/<group>                 UncleanElections  when a node led that may lack messages
    deleted                               DeletedTopics   ids and names of recently deleted topics
    grace                                 GraceClock      time that passed for deleted topics
    consumers/<group>                     ConsumerGroup   model, topics, start
      members/<member>        ephemeral   Member          host, pid, subscriptions
      assignment/<topic>/<n>              Assignment      member, generation (the fence)
      owners/<topic>/<n>      ephemeral   Owner           the member that consumes it now
      offsets/<topic>/<n>                 CommittedOffset offset, message id, epoch, member
    slots                                 SlotCounter     where the search for a slot starts
      <n>                     ephemeral   Slot            the holder of this message-id slot
    slot_marks/<n>                        SlotMark        the latest time of ids of the slot
    leases/<job>                          LeaseFence      how often the lease was taken (the fence)
      holder                  ephemeral   LeaseHolder     the node that does the job now
    archive/runs/…                                        the runs of the archive: ``run_values``
    writes/<write>/…                                      who writes repeatable writes: ``writes``
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar, Final, Self

from vq import limits
from vq.coordination.coordinator import Unreadable as Unreadable
from vq.coordination.coordinator import join
from vq.errors import CoordinationError, InvalidArgument
from vq.model import (
    Compression,
    FlushMode,
    PartitionState,
    Span,
    TopicDeletion,
    TopicOrigin,
    TopicSettings,
    check_pool,
)
from vq.shown import shown

FORMAT_VERSION: Final = 1

SETTINGS: Final = "settings"
SECURITY: Final = "security"
BROKERS: Final = "brokers"
TOPICS: Final = "topics"
DELETED: Final = "deleted"
GRACE: Final = "grace"
AUDIT: Final = "audit"
#: Nodes of a group that are remembered after they left the set of those in sync.
NODES_LEFT_MAX: Final = 16
#: Unclean elections of a group that are remembered.
UNCLEAN_ELECTIONS_MAX: Final = 20
CONSUMERS: Final = "consumers"
SLOTS: Final = "slots"
SLOT_MARKS: Final = "slot_marks"
LEASES: Final = "leases"

#: How long a deleted topic can be brought back, and how long at most.
DELETE_GRACE_HOURS: Final = 72
DELETE_GRACE_HOURS_MAX: Final = 8_760

#: Of a master: the wire and the batches have 32 bits for it.
EPOCH_MAX: Final = 2**32 - 1

#: Of a new secret, and the least of any.
SECRET_BYTES: Final = 32


class Value:
    """Base of all values: encoding as a JSON object with ``v``; decoding checks every type."""

    _what: ClassVar[str] = "value"

    def encode(self) -> bytes:
        """Return the bytes to store."""
        return json.dumps({"v": FORMAT_VERSION, **self._to_json()}).encode()

    @classmethod
    def decode(cls, path: str, data: bytes) -> Self:
        """Read the bytes stored at ``path``.

        Raises:
            Unreadable: They are not a value of this class, or a newer vq wrote them.
        """
        try:
            document = json.loads(data)
            version = document["v"]
            if type(version) is not int or version < 1:
                raise ValueError(f"v = {version!r}")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise Unreadable(
                f"znode {path!r} has {shown(data, 80)}, which is not a {cls._what}: {error!r}"
            ) from error
        if version > FORMAT_VERSION:
            raise Unreadable(
                f"znode {path!r} has format v{version}, this vq reads up to v{FORMAT_VERSION}; "
                "upgrade vq here"
            )
        try:
            return cls._from_json(document)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Unreadable(
                f"znode {path!r} has {shown(data, 80)}, which is not a {cls._what}: {error!r}"
            ) from error

    def _to_json(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]

    @classmethod
    def _from_json(cls, document: Mapping[str, Any]) -> Self:
        return cls(**cls._plain_fields(document))

    @classmethod
    def _plain_fields(cls, document: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that are present, each checked against its annotation."""
        known = {each.name: each for each in fields(cls)}  # type: ignore[arg-type]
        values = {name: document[name] for name in known if name in document}
        for name, value in values.items():
            _check_type(name, value, str(known[name].type))
        return values


def _check_type(name: str, value: object, declared: str) -> None:
    """Check a decoded field against its annotation: int, str, bool, float or a container."""
    allowed: dict[str, tuple[type, ...]] = {
        "int": (int,),
        "str": (str,),
        "bool": (bool,),
        "float": (int, float),
        "str | None": (str, type(None)),
        "int | None": (int, type(None)),
    }
    for annotation, types in allowed.items():
        if declared in {annotation, f"<class '{annotation}'>"}:
            if not isinstance(value, types) or (bool not in types and isinstance(value, bool)):
                raise TypeError(f"{name} = {value!r} is not {annotation}")
            return
    if "Mapping" in declared and not (
        isinstance(value, dict) and all(isinstance(each, str) for each in value.values())
    ):
        raise TypeError(f"{name} = {value!r} is not an object of strings")
    if "tuple" in declared and not (
        isinstance(value, list) and all(isinstance(each, str) for each in value)
    ):
        raise TypeError(f"{name} = {value!r} is not a list of strings")


# The cluster ----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings(Value):
    """What operators decided for the whole cluster.

    Attributes:
        may_create: Producers create a topic that is missing when they publish it.
        new_topics: The settings of such topics, at most 500 partitions. They are kept while
            producers may create none.
        delete_grace_hours: How long a topic that is deleted from now on can be brought back, 0 to
            8 760 hours; 0: not at all.
    """

    _what = "settings of the cluster"
    may_create: bool = False
    new_topics: TopicSettings = field(default_factory=TopicSettings)
    delete_grace_hours: int = DELETE_GRACE_HOURS

    def __post_init__(self) -> None:
        hours: object = self.delete_grace_hours
        if type(hours) is not int or not 0 <= hours <= DELETE_GRACE_HOURS_MAX:
            raise InvalidArgument(
                f"delete_grace_hours = {shown(hours)} is no whole number in "
                f"[0, {DELETE_GRACE_HOURS_MAX}]"
            )
        partitions, most = self.new_topics.partitions, limits.AUTO_CREATE_PARTITIONS_MAX
        if partitions > most:
            raise InvalidArgument(
                f"partitions = {partitions} is above {most}, the most of a topic that a producer "
                "creates: it is created in one step; give fewer, and create larger topics with "
                "`vq topic create`"
            )
        if not self.new_topics.writable:
            raise InvalidArgument(
                "writable = False: no producer could send to a topic that it creates; give True"
            )

    @property
    def auto_create(self) -> TopicSettings | None:
        """``new_topics``, or None if producers may create no topics."""
        return self.new_topics if self.may_create else None

    @staticmethod
    def path() -> str:
        """Return the path of the only node. For vq only."""
        return SETTINGS

    def _to_json(self) -> dict[str, Any]:
        auto_create = {"enabled": self.may_create, **_settings_to_json(self.new_topics)}
        values: dict[str, Any] = {"auto_create": auto_create}
        if self.delete_grace_hours != DELETE_GRACE_HOURS:
            values["delete_grace_hours"] = self.delete_grace_hours
        return values

    @classmethod
    def _from_json(cls, document: Mapping[str, Any]) -> Self:
        auto_create = document.get("auto_create", {"enabled": False})
        if type(auto_create["enabled"]) is not bool:
            raise TypeError(f"enabled = {auto_create['enabled']!r} is not a bool")
        new_topics = _settings_from_json({"flush": "sync", **auto_create})
        return cls(
            may_create=auto_create["enabled"],
            new_topics=new_topics,
            delete_grace_hours=document.get("delete_grace_hours", DELETE_GRACE_HOURS),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSecret(Value):
    """``security/secret``: what its brokers know and others do not. Made once.

    ``secret`` is in hexadecimal digits, at least ``SECRET_BYTES`` bytes. No text shows it.
    """

    _what = "secret"
    secret: str = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.key) < SECRET_BYTES:
            raise ValueError(f"a secret of {len(self.key)} bytes is too short")

    @classmethod
    def of(cls, key: bytes) -> Self:
        """Return the value that has these bytes."""
        return cls(secret=key.hex())

    @property
    def key(self) -> bytes:
        """The bytes."""
        return bytes.fromhex(self.secret)

    @staticmethod
    def path() -> str:
        """Return the path of the only node."""
        return join(SECURITY, "secret")

    @classmethod
    def decode(cls, path: str, data: bytes) -> Self:
        """See ``Value.decode``; the error does not tell what is stored there."""
        try:
            # Not super() alone: a class with slots is made anew, and this one is not its base.
            return super(ClusterSecret, cls).decode(path, data)
        except CoordinationError as error:
            if error.__cause__ is None:
                raise  # a newer vq has written it; that error has no bytes of it
        raise CoordinationError(
            f"znode {path!r} has something that is not a {cls._what}; it is not shown; "
            "`vq cluster replace-secret --yes` puts a new one there"
        )


# Brokers --------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerGroup(Value):
    """``brokers/<group>``: the operator's settings of a group.

    ``pool`` is None for the common pool, which ``common`` names, too. No partitions are placed on a
    group that is ``draining``, and a node in ``drained`` leads only if no other one in sync can.
    """

    _what = "broker group"
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

    def _to_json(self) -> dict[str, Any]:
        values = Value._to_json(self)
        if not self.drained:
            del values["drained"]
        return values


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
    epoch: int
    master: str
    insync: tuple[str, ...]
    incarnations: Mapping[str, int]
    directories: Mapping[str, str] = field(default_factory=dict)
    successor: str = ""
    resigns: bool = False
    unclean: bool = False
    left: tuple[str, ...] = ()

    @staticmethod
    def path(group: str) -> str:
        """Return the path of the group's state."""
        return join(BROKERS, group, "state")

    def _to_json(self) -> dict[str, Any]:
        values = Value._to_json(self)
        if not self.successor:
            del values["successor"], values["resigns"]
        if not self.unclean:
            del values["unclean"]
        if not self.left:
            del values["left"]
        return values

    @classmethod
    def _from_json(cls, document: Mapping[str, Any]) -> Self:
        insync = document["insync"]
        if not isinstance(insync, list) or not all(isinstance(node, str) for node in insync):
            raise TypeError(f"insync = {insync!r} is not a list of nodes")
        incarnations = document["incarnations"]
        if not all(type(czxid) is int for czxid in incarnations.values()):
            raise TypeError(f"incarnations = {incarnations!r} are not numbers")
        if type(document["epoch"]) is not int or not isinstance(document["master"], str):
            raise TypeError("epoch or master has another type")
        directories = document.get("directories", {})
        if not all(isinstance(directory, str) for directory in directories.values()):
            raise TypeError(f"directories = {directories!r} are not strings")
        unclean = document.get("unclean", False)
        if not isinstance(unclean, bool):
            raise TypeError(f"unclean = {unclean!r} is not a bool")
        offer = document.get("successor", ""), document.get("resigns", False)
        if not isinstance(offer[0], str) or not isinstance(offer[1], bool):
            raise TypeError(f"successor, resigns = {offer!r} are not a string and a bool")
        left = document.get("left", [])
        if not isinstance(left, list) or not all(isinstance(node, str) for node in left):
            raise TypeError(f"left = {left!r} is not a list of nodes")
        return cls(
            epoch=document["epoch"],
            master=document["master"],
            insync=tuple(insync),
            incarnations=dict(incarnations),
            directories=dict(directories),
            successor=offer[0],
            resigns=offer[1],
            unclean=unclean,
            left=tuple(left),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UncleanElections(Value):
    """``audit/unclean/<group>``: when operators had a node lead that may lack messages.

    Attributes:
        elections: The newest ones, the oldest first; see ``UncleanElection``.
    """

    _what = "list of unclean elections"
    elections: tuple["UncleanElection", ...] = ()

    @staticmethod
    def path(group: str) -> str:
        """Return the path of the list."""
        return join(AUDIT, "unclean", group)

    def with_election(self, election: "UncleanElection") -> Self:
        """Return the list with one more, and without the oldest ones beyond the bound."""
        return replace(self, elections=(*self.elections, election)[-UNCLEAN_ELECTIONS_MAX:])

    def _to_json(self) -> dict[str, Any]:
        return {"elections": [asdict(each) for each in self.elections]}

    @classmethod
    def _from_json(cls, document: Mapping[str, Any]) -> Self:
        return cls(
            elections=tuple(
                UncleanElection(
                    time_ms=int(each["time_ms"]),
                    who=str(each["who"]),
                    node=str(each["node"]),
                    epoch=int(each["epoch"]),
                    insync=tuple(map(str, each["insync"])),
                    topics=tuple(map(str, each["topics"])),
                )
                for each in document["elections"]
            )
        )


@dataclass(frozen=True, slots=True)
class UncleanElection:
    """An operator had a node lead that may lack acknowledged messages.

    Attributes:
        time_ms: When, by the clock of the operator's machine.
        who: The operator's user and machine.
        node: The node.
        epoch: The last one before; what was acknowledged in it, or earlier, may be lost.
        insync: The nodes that were in sync, and have it.
        topics: Whose messages may be lacking.
    """

    time_ms: int
    who: str
    node: str
    epoch: int
    insync: tuple[str, ...]
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerNode(Value):
    """``brokers/<group>/nodes/<node>``: a running broker process; its czxid is its incarnation.

    ``nonce`` identifies our own node after a lost reply. ``directory`` is the identity of the data
    directory, whose lock only one process can hold. ``pid`` is 0 if it is not known. With
    ``lost_power``, messages that the node had counted may have gone with the power of its machine,
    and it had not caught up when it registered (``insync.lacks_messages``). While it is
    ``damaged``, it has damage in its logs. ``rack`` is where its machine is, for readers that want
    a node near them; "": not told.
    """

    _what = "broker node"
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

    def _to_json(self) -> dict[str, Any]:
        values = Value._to_json(self)
        for name in ("rack", "damaged"):
            if not values[name]:
                del values[name]
        return values

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


# Topics ---------------------------------------------------------------------------------------
READY: Final = "ready"
CREATING: Final = "creating"
DELETING: Final = "deleting"
#: Deleted for clients, and can be brought back: brokers keep it as it is.
IN_GRACE: Final = "deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic(Value):
    """``topics/<topic>``: settings, number of partitions, phase.

    The placement is in the nodes below (``Partition``). Clients see a topic only in phase
    ``ready``; creating or deleting a large one takes several steps. ``origin`` is None, and left
    out, if it is not known. ``deletion`` is there in phase ``deleted``, and only then.
    """

    _what = "topic"
    id: str
    settings: TopicSettings
    phase: str = READY
    origin: TopicOrigin | None = None
    deletion: TopicDeletion | None = None

    @staticmethod
    def path(topic: str) -> str:
        """Return the topic's path."""
        return join(TOPICS, topic)

    def _to_json(self) -> dict[str, Any]:
        settings = _settings_to_json(self.settings)
        values: dict[str, Any] = {"id": self.id, "phase": self.phase, "settings": settings}
        if self.origin is not None:
            values["origin"] = asdict(self.origin)
        if self.deletion is not None:
            values["deletion"] = asdict(self.deletion)
        return values

    @classmethod
    def _from_json(cls, document: Mapping[str, Any]) -> Self:
        settings = _settings_from_json(document["settings"])
        phase = document.get("phase", READY)
        if phase not in {READY, CREATING, DELETING, IN_GRACE}:
            raise ValueError(f"phase = {phase!r}")
        deletion = _deletion(document["deletion"]) if phase == IN_GRACE else None
        if not isinstance(document["id"], str):
            raise TypeError(f"id = {document['id']!r} is not a string")
        origin = _origin(document.get("origin"))
        return cls(
            id=document["id"], settings=settings, phase=phase, origin=origin, deletion=deletion
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionFence(Value):
    """``topics/<topic>/deleting-<id>``: the topic with this id is being removed, step by step.

    Each step checks that it is there. So whoever goes on late removes nothing of a namesake.
    """

    _what = "fence of a deletion"

    @staticmethod
    def path(topic: str, topic_id: str) -> str:
        """Return the path of the fence."""
        return join(TOPICS, topic, f"deleting-{topic_id}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GraceClock(Value):
    """``grace``: for how long brokers have watched over deleted topics, in milliseconds, together.

    It counts time that certainly passed, and never more; no wall clock has a part in it.
    """

    _what = "count of the time for deleted topics"
    counted_ms: int

    def __post_init__(self) -> None:
        if self.counted_ms < 0:
            raise ValueError(f"counted_ms = {self.counted_ms}")

    @staticmethod
    def path() -> str:
        """Return the path of the only node."""
        return GRACE


#: Times of origins are before this one, in the year 6429: a later one need not be a date.
_TIME_MS_END: Final = 1 << 47


def _origin(document: object) -> TopicOrigin | None:
    """Return who created a topic, None if the value does not say it: nothing depends on it."""
    if not isinstance(document, Mapping):
        return None
    match document.get("client"), document.get("host"), document.get("time_ms"):
        case str(client), str(host), int(time_ms) if 0 <= time_ms < _TIME_MS_END:
            auto = document.get("auto") is True
            return TopicOrigin(client=client, host=host, time_ms=time_ms, auto=auto)
    return None


def _deletion(document: Mapping[str, Any]) -> TopicDeletion:
    """Return who deleted a topic; a time that is wrong would have it removed too early."""
    values = {each.name: document[each.name] for each in fields(TopicDeletion)}
    for name, value in values.items():
        _check_type(name, value, "str" if name in {"client", "host"} else "int")
        if name.endswith("_ms") and not 0 <= value < _TIME_MS_END:
            raise ValueError(f"{name} = {value}")
    return TopicDeletion(**values)


def _settings_to_json(settings: TopicSettings) -> dict[str, Any]:
    return {each.name: getattr(settings, each.name) for each in fields(TopicSettings)}


def _settings_from_json(document: Mapping[str, Any]) -> TopicSettings:
    known = {each.name for each in fields(TopicSettings)}
    values = {k: v for k, v in document.items() if k in known}
    values["flush"] = FlushMode(values["flush"])
    if values.get("compression") is not None:
        values["compression"] = Compression(values["compression"])
    return TopicSettings(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition(Value):
    """``topics/<topic>/partitions/<n>``: the spans of a partition and its state."""

    _what = "partition"
    spans: tuple[Span, ...]
    state: PartitionState = PartitionState.RW

    @staticmethod
    def parent(topic: str) -> str:
        """Return the path that holds the topic's partitions."""
        return join(TOPICS, topic, "partitions")

    @classmethod
    def path(cls, topic: str, partition: int) -> str:
        """Return the partition's path."""
        return join(cls.parent(topic), str(partition))

    def _to_json(self) -> dict[str, Any]:
        placement = [{"group": s.group, "start": s.start, "end": s.end} for s in self.spans]
        return {"placement": placement, "state": self.state}

    @classmethod
    def _from_json(cls, document: Mapping[str, Any]) -> Self:
        spans = tuple(_span(each) for each in document["placement"])
        return cls(spans=spans, state=PartitionState(document["state"]))


#: Changes in a topic's list; a reader that missed more reads all partitions again.
PLACEMENT_CHANGES_MAX: Final = 256
#: The most groups in the counts of a list. For a topic on more groups the list has no counts: every
#: client that tracks the topic reads the list at each change, so it must stay small.
OPEN_GROUPS_MAX: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementChanges(Value):
    """``topics/<topic>/partitions``: the recently changed partitions, the newest last.

    Every change of a partition's node writes this node in the same ``multi``. So one watch covers
    all partitions: a reader that knows version 7 of this node and reads version 9 has to read two
    partitions. It is a hint, like a watch; only the partitions' nodes have the placement.

    ``version`` is the version of the znode with this value. If they differ, another program wrote
    the node. Invariant: the last of ``partitions`` changed with that version, the one before it
    with the version before.

    ``open`` counts the open partitions of each group, under "" those that are open on none, so that
    a list of topics needs no reads of partitions. None, and left out: not known.
    """

    _what = "list of changed partitions"
    version: int = 0
    partitions: tuple[int, ...] = ()
    open: Mapping[str, int] | None = None

    @staticmethod
    def path(topic: str) -> str:
        """Return the path of the topic's list."""
        return Partition.parent(topic)

    @classmethod
    def of_node(cls, path: str, data: bytes, version: int) -> Self:
        """Return a node's value; only its version if another program wrote the node."""
        try:
            value = cls.decode(path, data)
        except CoordinationError:
            return cls(version=version)
        return value if value.version == version else cls(version=version)

    def with_change(self, partition: int, opened: Mapping[str, int] | None = None) -> Self:
        """Return the list to write with a change of ``partition``.

        ``opened`` has the change of the number of open partitions of each group.
        """
        partitions = (*self.partitions, partition)[-PLACEMENT_CHANGES_MAX:]
        counts = self.open
        if counts is not None:
            names = sorted({*counts, *(opened or {})})
            sums = {name: counts.get(name, 0) + (opened or {}).get(name, 0) for name in names}
            counts = {name: count for name, count in sums.items() if count}
        return replace(self, version=self.version + 1, partitions=partitions, open=counts)

    def since(self, version: int) -> frozenset[int] | None:
        """Return the partitions that changed after ``version`` of this node; None: not known."""
        missed = self.version - version
        if not 0 <= missed <= len(self.partitions):
            return None
        return frozenset(self.partitions[len(self.partitions) - missed :])

    def _to_json(self) -> dict[str, Any]:
        values: dict[str, Any] = {"version": self.version, "partitions": self.partitions}
        if self.open is not None and len(self.open) <= OPEN_GROUPS_MAX:
            values["open"] = dict(self.open)
        return values

    @classmethod
    def _from_json(cls, document: Mapping[str, Any]) -> Self:
        version, partitions = document["version"], document["partitions"]
        numbers = isinstance(partitions, list) and all(type(each) is int for each in partitions)
        if type(version) is not int or not numbers:
            raise TypeError(f"version {version!r}, partitions {partitions!r}")
        counts = document.get("open")
        if counts is not None and not all(type(each) is int for each in counts.values()):
            raise TypeError(f"open {counts!r}")
        return cls(version=version, partitions=tuple(partitions), open=counts)


def _span(document: Mapping[str, Any]) -> Span:
    group, start, end = document["group"], document["start"], document.get("end")
    if not isinstance(group, str) or type(start) is not int or start < 0:
        raise TypeError(f"span {document!r}")
    if end is not None and (type(end) is not int or end < start):
        raise ValueError(f"span {document!r} ends before it starts")
    return Span(group, start, end)


#: Topics in the list of deleted ones. With the longest names it has 120 KB; a znode may have 1 MB.
DELETED_TOPICS_MAX: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedTopics(Value):
    """``deleted``: id → name of recently deleted topics, the oldest first.

    It is written before any node of a topic is deleted. A topic that is neither in the tree nor in
    this list was not deleted: the tree may come from a backup that is older than the topic.
    """

    _what = "list of deleted topics"
    topics: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def path() -> str:
        """Return the path of the list."""
        return DELETED

    def with_topic(self, topic_id: str, name: str) -> Self:
        """Return the list with one more topic, and without the oldest ones beyond the bound."""
        others = {key: value for key, value in self.topics.items() if key != topic_id}
        kept = list({**others, topic_id: name}.items())[-DELETED_TOPICS_MAX:]
        return replace(self, topics=dict(kept))


# Consumers ------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroup(Value):
    """``consumers/<group>``: the contract of all members; the first member creates it.

    ``model`` is ``clustering`` (each message to one member) or ``broadcasting`` (to all).
    ``start`` is ``earliest`` or ``latest``: where the group begins in a partition without a
    committed offset. ``topics`` maps each topic to its filter, "" for none.
    """

    _what = "consumer group"
    model: str = "clustering"
    start: str = "earliest"
    topics: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.model not in {"clustering", "broadcasting"}:
            raise InvalidArgument(
                f"model {self.model!r} is neither 'clustering' nor 'broadcasting'"
            )
        if self.start not in {"earliest", "latest"}:
            raise InvalidArgument(f"start {self.start!r} is not 'earliest' or 'latest'")

    @staticmethod
    def path(group: str) -> str:
        """Return the group's path."""
        return join(CONSUMERS, group)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member(Value):
    """``consumers/<group>/members/<member>``: a consumer process."""

    _what = "group member"
    host: str = ""
    pid: int = 0
    topics: tuple[str, ...] = ()
    since_ms: int = 0
    nonce: str = ""

    @staticmethod
    def parent(group: str) -> str:
        """Return the path that holds the group's members."""
        return join(CONSUMERS, group, "members")

    @classmethod
    def path(cls, group: str, member: str) -> str:
        """Return the member's path."""
        return join(cls.parent(group), member)

    @classmethod
    def _from_json(cls, document: Mapping[str, Any]) -> Self:
        values = cls._plain_fields(document)
        return cls(**{**values, "topics": tuple(values.get("topics", ()))})


class PartitionOfGroup(Value):
    """Base of the values that a consumer group has for each partition."""

    _folder: ClassVar[str]

    @classmethod
    def parent(cls, group: str, topic: str) -> str:
        """Return the path that holds one node for each partition of the topic."""
        return join(CONSUMERS, group, cls._folder, topic)

    @classmethod
    def path(cls, group: str, topic: str, partition: int) -> str:
        """Return the partition's path."""
        return join(cls.parent(group, topic), str(partition))


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment(PartitionOfGroup):
    """``consumers/<group>/assignment/<topic>/<n>``: the last claim. Persistent: it is the fence.

    ``generation`` is the version of the znode with this value. ``member`` is "" before the first
    claim and after a reset.
    """

    _what = "assignment"
    _folder = "assignment"
    member: str = ""
    generation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner(PartitionOfGroup):
    """``consumers/<group>/owners/<topic>/<n>``: the member that consumes it now.

    ``stopped`` is the error that stops the member, ``stopped_at`` the offset and
    ``stopped_since_ms`` the time. All three are left out while the member goes on.
    """

    _what = "owner"
    _folder = "owners"
    member: str
    generation: int = 0
    stopped: str = ""
    stopped_at: int | None = None
    stopped_since_ms: int = 0

    def _to_json(self) -> dict[str, Any]:
        values: dict[str, Any] = {"member": self.member, "generation": self.generation}
        if self.stopped:
            values["stopped"] = self.stopped
            values["stopped_at"] = self.stopped_at
            values["stopped_since_ms"] = self.stopped_since_ms
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset(PartitionOfGroup):
    """``consumers/<group>/offsets/<topic>/<n>``: all messages before ``offset`` are handled.

    ``message_id`` is the id of the last handled message; None, and left out, if there is none or it
    is not known. ``epoch`` is that of the batch before the offset; 0, and left out, if it is not
    known. They and ``topic_id`` identify the place, because another topic or another log may have
    the same offset. ``stopped`` says why the group does not go on from here. An empty ``topic_id``
    or ``stopped`` is left out.
    """

    _what = "offset"
    _folder = "offsets"
    offset: int
    message_id: int | None = None
    time_ms: int = 0
    member: str = ""
    topic_id: str = ""
    stopped: str = ""
    epoch: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.epoch <= EPOCH_MAX:
            raise ValueError(f"epoch = {self.epoch} is outside [0, {EPOCH_MAX}]")

    def _to_json(self) -> dict[str, Any]:
        epoch = self.epoch or None
        values = {"offset": self.offset, "message_id": self.message_id, "epoch": epoch}
        known = {name: value for name, value in values.items() if value is not None}
        texts = {"topic_id": self.topic_id, "stopped": self.stopped}
        present = {name: text for name, text in texts.items() if text}
        return {**known, "time_ms": self.time_ms, "member": self.member, **present}

    @classmethod
    def _from_json(cls, document: Mapping[str, Any]) -> Self:
        values = cls._plain_fields(document)
        # No message has the id 0; an earlier vq wrote it for an unknown one.
        return cls(**{**values, "message_id": values.get("message_id") or None})


# Slots ----------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class SlotCounter(Value):
    """``slots``: the search for a free slot starts at ``next``, which wraps around."""

    _what = "slot counter"
    next: int = 0

    @staticmethod
    def path() -> str:
        """Return the path of the counter."""
        return SLOTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot(Value):
    """``slots/<n>``: the lease of one producer, until its session ends."""

    _what = "slot"
    holder: str = ""
    since_ms: int = 0

    @staticmethod
    def path(slot: int) -> str:
        """Return the slot's path."""
        return join(SLOTS, str(slot))


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotMark(Value):
    """``slot_marks/<n>``: ids of the slot up to ``until_ms`` (wall time) may have been made."""

    _what = "slot mark"
    until_ms: int = 0

    @staticmethod
    def path(slot: int) -> str:
        """Return the mark's path."""
        return join(SLOT_MARKS, str(slot))


# Leases ---------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseFence(Value):
    """``leases/<job>``: persistent; ``fence`` rises by 1 whenever a node takes the lease.

    Whoever does something under the lease checks the version of this node in the same ``multi``.
    """

    _what = "fence of a lease"
    fence: int = 0

    @staticmethod
    def path(job: str) -> str:
        """Return the path of the job's lease."""
        return join(LEASES, job)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseHolder(Value):
    """``leases/<job>/holder``: who holds the lease with ``fence``, until its session ends.

    ``nonce`` identifies our own node after a lost reply.
    """

    _what = "holder of a lease"
    holder: str
    fence: int
    since_ms: int = 0
    nonce: str = ""

    @staticmethod
    def path(job: str) -> str:
        """Return the path of the node of the job's holder."""
        return join(LEASES, job, "holder")
