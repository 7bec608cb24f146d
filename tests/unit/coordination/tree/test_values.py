"""Values in the tree: what they look like to an operator, and what is refused."""

import importlib
import json
import pkgutil

import pytest
from support.cases import case

from vq.coordination.tree import paths, values
from vq.coordination.tree.values.access import AccessList
from vq.coordination.tree.values.allocations import (
    AllocationCancel,
    AllocationEvent,
    AllocationOrder,
    AllocationProgress,
    AllocationState,
    FailedMove,
    OrderedMove,
    OrderedPool,
    next_state,
)
from vq.coordination.tree.values.audit import (
    ActOutcome,
    ActRecord,
    UncleanElection,
    UncleanElections,
)
from vq.coordination.tree.values.brokers import (
    BrokerGroup,
    BrokerLoad,
    GroupState,
    OpenPartitions,
    Registration,
)
from vq.coordination.tree.values.cluster import ClusterSecret, ClusterSettings
from vq.coordination.tree.values.consumers import (
    Assignment,
    CommittedOffset,
    ConsumerGroup,
    Member,
    Owner,
    PartitionOfGroup,
    PastClaim,
)
from vq.coordination.tree.values.decisions import Decision
from vq.coordination.tree.values.group_terms import FailurePolicy
from vq.coordination.tree.values.identities import Identities
from vq.coordination.tree.values.leases import LeaseFence, LeaseHolder, LeaseTimes
from vq.coordination.tree.values.partitions import Partition, PlacementChanges
from vq.coordination.tree.values.quotas import QuotaList
from vq.coordination.tree.values.runs import (
    ArchiveTopicRun,
    RunCounter,
    RunOrder,
    RunResult,
    RunState,
)
from vq.coordination.tree.values.slots import Slot, SlotCounter, SlotMark
from vq.coordination.tree.values.topics import DeletedTopics, DeletionFence, GraceClock, TopicNode
from vq.coordination.tree.values.users import StoredSecret, StoredUser
from vq.coordination.tree.values.value import SingleValue, Value
from vq.errors import CoordinationError, InvalidState
from vq.message_filter import ALL, Filter
from vq.model import FlushMode, PartitionState, Span, TopicSettings
from vq.security.quotas import Quota, Quotas
from vq.security.rules import AccessRule, AccessRules
from vq.security.scram import ScramSecret

#: Every value class: an instance, and the JSON an operator sees. Stored data depend on it.
GOLDEN: list[tuple[Value, str]] = [
    (
        Identities(
            operators=(f"op:{'A' * 28}",), brokers=(), clients={f"c:{'B' * 28}": ("mail-*",)}
        ),
        '{"v": 1, "operators": ["op:AAAAAAAAAAAAAAAAAAAAAAAAAAAA"], "brokers": [], '
        '"clients": {"c:BBBBBBBBBBBBBBBBBBBBBBBBBBBB": ["mail-*"]}}',
    ),
    (
        AllocationOrder(
            started_ms=7,
            by="root@host",
            source="advisor",
            at_a_time=2,
            pause_s=0.5,
            ids={"t": "ab"},
            pools=(OrderedPool("t", None),),
            moves=(OrderedMove("t", 3, "b1", "b2", 88), OrderedMove("t", 4, "b2", "b1", 0)),
        ),
        '{"v": 1, "started_ms": 7, "by": "root@host", "source": "advisor", "at_a_time": 2, '
        '"pause_s": 0.5, "topics": ["t"], "ids": ["ab"], "pools": [["t", null]], '
        '"groups": ["b1", "b2"], "moves": [[0, 3, 0, 1, 88], [0, 4, 1, 0, 0]]}',
    ),
    (
        AllocationProgress(
            state=AllocationState.FAILED,
            by="root@host, process 7",
            updated_ms=9,
            done=1,
            moving=("t-4",),
            failed=(FailedMove("t", 3, "b2 is away"),),
        ),
        '{"v": 1, "state": "failed", "by": "root@host, process 7", "updated_ms": 9, "done": 1, '
        '"moving": ["t-4"], "failed": [["t", 3, "b2 is away"]]}',
    ),
    (
        AllocationCancel(by="root@host", time_ms=9),
        '{"v": 1, "by": "root@host", "time_ms": 9}',
    ),
    (
        PlacementChanges(version=9, partitions=(7, 3)),
        '{"v": 1, "version": 9, "partitions": [7, 3]}',
    ),
    (
        PlacementChanges(version=1, partitions=(4,), open={"b1": 3, "": 1}),
        '{"v": 1, "version": 1, "partitions": [4], "open": {"b1": 3, "": 1}}',
    ),
    (OpenPartitions(open=7), '{"v": 1, "open": 7}'),
    (LeaseFence(fence=3), '{"v": 1, "fence": 3}'),
    (
        LeaseHolder(holder="b1/n1", fence=3, since_ms=9, nonce="ab"),
        '{"v": 1, "holder": "b1/n1", "fence": 3, "since_ms": 9, "nonce": "ab"}',
    ),
    (LeaseTimes(due_ms={"clean@1": 9}), '{"v": 1, "due_ms": {"clean@1": 9}}'),
    (
        AccessList(rules=AccessRules([AccessRule.parse("deny * read,write topic:a*")])),
        '{"v": 1, "rules": ["deny * read,write topic:a*"]}',
    ),
    (
        QuotaList(quotas=Quotas([Quota.parse("user:* bytes-in=10M time=2.5% requests=unlimited")])),
        '{"v": 1, "quotas": ["user:* bytes-in=10M requests=unlimited time=2.5%"]}',
    ),
    (
        StoredUser(
            salt=b"\x5a" * 16,
            iterations=15_000,
            secrets=(StoredSecret(ScramSecret(b"\xa5" * 32, b"\x00" * 32), 8),),
            roles=("shop", "audit"),
            created_ms=7,
            by="root@host",
        ),
        '{"v": 1, "salt": "'
        + "5a" * 16
        + '", "iterations": 15000, "secrets": [{"stored_key": "'
        + "a5" * 32
        + '", "server_key": "'
        + "00" * 32
        + '", "since_ms": 8}], '
        '"roles": ["shop", "audit"], "created_ms": 7, "by": "root@host"}',
    ),
    (ClusterSecret(secret="a5" * 32), '{"v": 1, "secret": "' + "a5" * 32 + '"}'),
    (
        BrokerGroup(pool="p", labels={"rack": "7"}, draining=True),
        '{"v": 1, "pool": "p", "labels": {"rack": "7"}, "draining": true}',
    ),
    (
        GroupState(
            epoch=3,
            master="n1",
            insync=("n1", "n2"),
            incarnations={"n1": 5, "n2": 6},
            directories={"n1": "8f"},
        ),
        '{"v": 1, "epoch": 3, "master": "n1", "insync": ["n1", "n2"], '
        '"incarnations": {"n1": 5, "n2": 6}, "directories": {"n1": "8f"}}',
    ),
    (
        GroupState(
            epoch=8, master="n3", insync=("n3",), incarnations={}, unclean=True, left=("n1",)
        ),
        '{"v": 1, "epoch": 8, "master": "n3", "insync": ["n3"], "incarnations": {}, '
        '"directories": {}, "unclean": true, "left": ["n1"]}',
    ),
    (
        ActRecord(
            time_ms=5,
            who="anna@host",
            act="create_topic",
            user="u",
            identity="ops",
            person="carla from 10.0.0.9",
            subject="orders",
            arguments="{}",
            before="",
            charged="carla",
            partitions=8,
        ),
        '{"v": 1, "time_ms": 5, "who": "anna@host", "act": "create_topic", "user": "u", '
        '"identity": "ops", "person": "carla from 10.0.0.9", "subject": "orders", '
        '"arguments": "{}", "before": "", "charged": "carla", "partitions": 8}',
    ),
    (
        ActOutcome(time_ms=6, outcome="failed", error="NoNode: x", after="{}"),
        '{"v": 1, "time_ms": 6, "outcome": "failed", "error": "NoNode: x", "after": "{}", '
        '"refused": false}',
    ),
    (
        UncleanElections(
            elections=(UncleanElection(9, "root@host", "n3", 7, ("n1", "n2"), ("t",)),)
        ),
        '{"v": 1, "elections": [{"time_ms": 9, "who": "root@host", "node": "n3", "epoch": 7, '
        '"insync": ["n1", "n2"], "topics": ["t"]}]}',
    ),
    (
        Registration(
            host="h", port=1, started_ms=2, version="0.1", nonce="x", directory="d", pid=4711
        ),
        '{"v": 1, "host": "h", "port": 1, "metrics_port": 0, "started_ms": 2, "version": "0.1", '
        '"nonce": "x", "directory": "d", "pid": 4711, "lost_power": false}',
    ),
    (
        BrokerLoad(time_ms=9, disk_bytes_free=1, disk_bytes_total=2, busy=0.5, queue_depth=3),
        '{"v": 1, "time_ms": 9, "disk_bytes_free": 1, "disk_bytes_total": 2, '
        '"disk_excess_bytes": 0, "stored_bytes": 0, '
        '"messages_per_s": 0.0, "bytes_per_s": 0.0, "busy": 0.5, "capacity_bytes_per_s": 0.0, '
        '"queue_depth": 3, "flush_ms": 0.0, "partitions": 0}',
    ),
    (
        TopicNode(id="ab", settings=TopicSettings(partitions=2, flush=FlushMode.ASYNC, pool="p")),
        '{"v": 1, "id": "ab", "phase": "ready", "settings": {"partitions": 2, "flush": "async", '
        '"flush_interval_messages": 1000, "flush_interval_ms": 10000, "max_message_bytes": 1048576,'
        ' "compression": null, "compression_threshold": null,'
        ' "retention_hours": 72, "retention_bytes": null, "retention_early_hours": null,'
        ' "retention_policy": "delete",'
        ' "archive_after_hours": null, "archive_to": null,'
        ' "pool": "p", "replication": "sync", "min_insync": 1,'
        ' "readable": true, "writable": true}}',
    ),
    (
        ClusterSettings(may_create=True, new_topics=TopicSettings(partitions=2)),
        '{"v": 1, "auto_create": {"enabled": true, "partitions": 2, "flush": "sync", '
        '"flush_interval_messages": 1000, "flush_interval_ms": 10000, "max_message_bytes": 1048576,'
        ' "compression": null, "compression_threshold": null,'
        ' "retention_hours": 72, "retention_bytes": null, "retention_early_hours": null,'
        ' "retention_policy": "delete",'
        ' "archive_after_hours": null, "archive_to": null,'
        ' "pool": null, "replication": "sync", "min_insync": 1,'
        ' "readable": true, "writable": true}}',
    ),
    (
        ClusterSettings(new_topics=TopicSettings(partitions=2)),
        '{"v": 1, "auto_create": {"enabled": false, "partitions": 2, "flush": "sync", '
        '"flush_interval_messages": 1000, "flush_interval_ms": 10000, "max_message_bytes": 1048576,'
        ' "compression": null, "compression_threshold": null,'
        ' "retention_hours": 72, "retention_bytes": null, "retention_early_hours": null,'
        ' "retention_policy": "delete",'
        ' "archive_after_hours": null, "archive_to": null,'
        ' "pool": null, "replication": "sync", "min_insync": 1,'
        ' "readable": true, "writable": true}}',
    ),
    (
        Partition(spans=(Span("b1", 0, 9), Span("b2", 9)), state=PartitionState.RO),
        '{"v": 1, "placement": [{"group": "b1", "start": 0, "end": 9}, '
        '{"group": "b2", "start": 9, "end": null}], "state": "ro"}',
    ),
    (
        DeletedTopics(topics={"ab": "t", "cd": "u"}),
        '{"v": 1, "topics": {"ab": "t", "cd": "u"}}',
    ),
    (
        ClusterSettings(delete_grace_hours=0),
        '{"v": 1, "auto_create": {"enabled": false, "partitions": 1, "flush": "sync", '
        '"flush_interval_messages": 1000, "flush_interval_ms": 10000, "max_message_bytes": 1048576,'
        ' "compression": null, "compression_threshold": null,'
        ' "retention_hours": 72, "retention_bytes": null, "retention_early_hours": null,'
        ' "retention_policy": "archive",'
        ' "archive_after_hours": null, "archive_to": null,'
        ' "pool": null, "replication": "sync", "min_insync": 1,'
        ' "readable": true, "writable": true}, "delete_grace_hours": 0}',
    ),
    (DeletionFence(), '{"v": 1}'),
    (RunCounter(next=7, daily_ms=8), '{"v": 1, "next": 7, "since_ms": 0, "daily_ms": 8}'),
    (GraceClock(counted_ms=60_000), '{"v": 1, "counted_ms": 60000}'),
    (
        ConsumerGroup(start="latest", topics={"t": Filter(("red",))}),
        '{"v": 1, "model": "clustering", "start": "latest", "topics": {"t": "red"}}',
    ),
    (
        ConsumerGroup(topics={"t": ALL}, by_stream=True),
        '{"v": 1, "model": "clustering", "start": "earliest", "topics": {"t": ""}, '
        '"by_stream": true}',
    ),
    (
        ConsumerGroup(
            mode="keyed",
            order="relaxed",
            strategy="average",
            failure=FailurePolicy(
                on_failure="retry-topic",
                max_attempts=2,
                retry_backoff_s=(0.5, 5),
                retry_topic_s=(10, 60),
            ),
        ),
        '{"v": 2, "model": "clustering", "start": "earliest", "topics": {}, "mode": "keyed", '
        '"order": "relaxed", "strategy": "average", "failure": {"on_failure": "retry-topic", '
        '"max_attempts": 2, "retry_backoff_s": [0.5, 5.0], "retry_topic_s": [10.0, 60.0], '
        '"on_bad_record": "stop"}}',
    ),
    (
        Member(host="h", pid=1, topics=("t",), since_ms=2, nonce="x"),
        '{"v": 1, "host": "h", "pid": 1, "topics": ["t"], "since_ms": 2, "nonce": "x"}',
    ),
    (Assignment(member="m", generation=4), '{"v": 1, "member": "m", "generation": 4}'),
    (
        Assignment(
            member="m",
            generation=4,
            history=(PastClaim(member="m", generation=4, time_ms=9, reason="left"),),
        ),
        '{"v": 1, "member": "m", "generation": 4, "history": [{"member": "m", "generation": 4, '
        '"time_ms": 9, "reason": "left"}]}',
    ),
    (
        Member(host="h", pid=1, topics=("t",), since_ms=2, nonce="x", rack="r1"),
        '{"v": 1, "host": "h", "pid": 1, "topics": ["t"], "since_ms": 2, "nonce": "x", '
        '"rack": "r1"}',
    ),
    (Owner(member="m", generation=4), '{"v": 1, "member": "m", "generation": 4}'),
    (
        CommittedOffset(offset=9, message_id=8, time_ms=7, member="m"),
        '{"v": 1, "offset": 9, "message_id": 8, "time_ms": 7, "member": "m"}',
    ),
    (
        CommittedOffset(offset=9, time_ms=7, member="m"),
        '{"v": 1, "offset": 9, "time_ms": 7, "member": "m"}',
    ),
    (
        CommittedOffset(offset=9, message_id=8, time_ms=7, member="m", topic_id="ab", stopped="x"),
        '{"v": 1, "offset": 9, "message_id": 8, "time_ms": 7, "member": "m", "topic_id": "ab", '
        '"stopped": "x"}',
    ),
    (
        CommittedOffset(offset=9, time_ms=7, member="m", ahead=((20, 5), (40, 6))),
        '{"v": 1, "offset": 9, "time_ms": 7, "member": "m", "ahead": [[20, 5], [40, 6]]}',
    ),
    (
        CommittedOffset(offset=9, message_id=8, time_ms=7, member="m", topic_id="ab", epoch=3),
        '{"v": 1, "offset": 9, "message_id": 8, "epoch": 3, "time_ms": 7, "member": "m", '
        '"topic_id": "ab"}',
    ),
    (SlotCounter(next=5), '{"v": 1, "next": 5}'),
    (Slot(holder="h", since_ms=1), '{"v": 1, "holder": "h", "since_ms": 1}'),
    (SlotMark(until_ms=5), '{"v": 1, "until_ms": 5}'),
    (
        Decision(transaction=7, group="g", member="m"),
        '{"v": 1, "transaction": 7, "group": "g", "member": "m"}',
    ),
    (RunCounter(next=7, since_ms=9), '{"v": 1, "next": 7, "since_ms": 9}'),
    (
        RunOrder(as_of_ms=5, started_ms=6, by="b1/n1", nonce="ab", due_ms=4, fence=3),
        '{"v": 1, "as_of_ms": 5, "started_ms": 6, "by": "b1/n1", "nonce": "ab", "dry_run": false, '
        '"due_ms": 4, "fence": 3}',
    ),
    (
        RunOrder(as_of_ms=5, started_ms=6, by="me", nonce="ab", topic="t", dry_run=True),
        '{"v": 1, "as_of_ms": 5, "started_ms": 6, "by": "me", "nonce": "ab", "topic": "t", '
        '"dry_run": true}',
    ),
    (
        RunResult(
            state=RunState.FAILED,
            begun_ms=1,
            ended_ms=2,
            total=ArchiveTopicRun(3, 4, 5, 6, "x"),
            topics={"t": ArchiveTopicRun(3, 4, 5, 6, "x")},
        ),
        '{"v": 1, "state": "failed", "begun_ms": 1, "ended_ms": 2, "total": {"blocks": 3, '
        '"size_bytes": 4, "archive_bytes": 5, "failed": 6, "error": "x"}, "topics": {"t": '
        '{"blocks": 3, "size_bytes": 4, "archive_bytes": 5, "failed": 6, "error": "x"}}, '
        '"omitted": 0}',
    ),
]


def test_values_are_stored_as_readable_json() -> None:
    """Both ways, byte for byte."""
    for value, text in GOLDEN:
        with case(value):
            assert value.encode() == text.encode()
            assert type(value).decode("p", text.encode()) == value


def test_unknown_fields_are_ignored_and_newer_formats_refused() -> None:
    """An older vq reads what a newer one added, but not what a newer one changed."""
    for value, text in GOLDEN:
        document = json.loads(text)
        added = json.dumps(document | {"later": [1]}).encode()
        with case(value):
            assert type(value).decode("p", added) == value
            with pytest.raises(CoordinationError, match=r"v9.*upgrade"):
                type(value).decode("p", json.dumps(document | {"v": 9}).encode())


def test_damaged_values_are_refused_with_their_path() -> None:
    """Every field with another type, and every truncation: an error that names the znode."""
    for value, text in GOLDEN:
        document = json.loads(text)
        bad = [json.dumps({**document, name: {"x": [1]}}) for name in document]
        bad += [json.dumps({**document, name: [[]]}) for name in document]
        bad += [text[:length] for length in range(len(text))]
        bad += ["[]", "1", "null", '{"v": 0}', '{"v": true}', '{"v": "1"}', "[" * 100_000]
        for each in bad:
            with case(value, each[:200]), pytest.raises(CoordinationError, match="brokers/x"):
                type(value).decode("brokers/x", each.encode())


@pytest.mark.parametrize("topic_id", ["", "..", "../../etc", "a/b", "a.b", "a\0", "x" * 33, 5])
def test_an_id_of_a_topic_that_is_no_part_of_a_name_is_refused(topic_id: object) -> None:
    """It becomes a part of names of files, and of URLs; the error tells what it may be."""
    stored = json.loads(TopicNode(id="ab", settings=TopicSettings()).encode())
    with pytest.raises(CoordinationError, match="1 to 32 characters of A-Z a-z 0-9 _ -") as caught:
        TopicNode.decode("topics/t", json.dumps({**stored, "id": topic_id}).encode())
    assert "topics/t" in str(caught.value)


def test_missing_fields_of_old_values_get_their_defaults() -> None:
    """Fields that came later have defaults; those that were always there are required."""
    assert Registration.decode("p", b'{"v": 1, "host": "h", "port": 1}').nonce == ""
    assert CommittedOffset.decode("p", b'{"v": 1, "offset": 3}').member == ""
    assert CommittedOffset.decode("p", b'{"v": 1, "offset": 3}').epoch == 0
    for ahead in (b"5", b"[5]", b"[[5]]", b'[[5, "6"]]', b"[[5, true]]"):
        with pytest.raises(CoordinationError, match="ahead"):
            CommittedOffset.decode("p", b'{"v": 1, "offset": 3, "ahead": %s}' % ahead)
    for epoch in (b"-1", b"4294967296", b"true", b"null"):
        with pytest.raises(CoordinationError):
            CommittedOffset.decode("p", b'{"v": 1, "offset": 3, "epoch": %s}' % epoch)
    with pytest.raises(CoordinationError):
        CommittedOffset.decode("p", b'{"v": 1}')


def test_the_paths_are_those_of_the_tree() -> None:
    """Other programs and operators rely on them."""
    assert [
        ClusterSecret.path(),
        AccessList.path(),
        QuotaList.path(),
        BrokerGroup.path("b1"),
        GroupState.path("b1"),
        Registration.path("b1", "n1"),
        BrokerLoad.path("b1", "n1"),
        TopicNode.path("t"),
        Partition.path("t", 3),
        ConsumerGroup.path("g"),
        Member.path("g", "m"),
        Assignment.path("g", "t", 3),
        Owner.path("g", "t", 3),
        CommittedOffset.path("g", "t", 3),
        SlotCounter.path(),
        Slot.path(7),
        SlotMark.path(7),
    ] == [
        "security/secret",
        "security/acls",
        "security/quotas",
        "brokers/b1",
        "brokers/b1/state",
        "brokers/b1/nodes/n1",
        "brokers/b1/load/n1",
        "topics/t",
        "topics/t/partitions/3",
        "consumers/g",
        "consumers/g/members/m",
        "consumers/g/assignment/t/3",
        "consumers/g/owners/t/3",
        "consumers/g/offsets/t/3",
        "slots",
        "slots/7",
        "slot_marks/7",
    ]


def value_classes() -> set[type[Value]]:
    """The classes of all modules of the package, without their bases."""
    modules = [
        importlib.import_module(f"{values.__name__}.{each.name}")
        for each in pkgutil.iter_modules(values.__path__)
    ]
    found = {
        each
        for module in modules
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, Value)
    }
    return found - {Value, SingleValue, PartitionOfGroup}


def test_every_value_class_has_a_golden_line() -> None:
    """A new znode needs one."""
    assert value_classes() == {type(value) for value, _ in GOLDEN}


def test_the_table_of_the_tree_shows_every_value_class() -> None:
    """Whoever looks for a znode reads one table."""
    shown = set((paths.__doc__ or "").split())
    assert {each.__name__ for each in value_classes()} - shown == set()


def test_an_allocation_that_is_done_stays_so_and_others_can_be_gone_on_with() -> None:
    for state in (AllocationState.RUNNING, AllocationState.FAILED, AllocationState.CANCELLED):
        assert next_state(state, AllocationEvent.RESUME) is AllocationState.RUNNING
    for event in AllocationEvent:
        with pytest.raises(InvalidState, match=f"done cannot have the event {event.name}"):
            next_state(AllocationState.DONE, event)


def test_the_progress_of_an_allocation_stays_small() -> None:
    """Whatever fails: one value is far below what a znode takes."""
    failed = tuple(FailedMove("t" * 200, number, "x" * 10_000) for number in range(10_000))
    moving = tuple(f"{'t' * 200}-{number}" for number in range(10_000))
    told = AllocationProgress(failed=failed, moving=moving).bounded()
    assert len(told.encode()) < 100_000
    assert told.failed[0].partition == 0
