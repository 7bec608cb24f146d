"""Every operation of the JSON API is asked once, and its answer is what the description says."""

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import pytest
from support.broker import MemoryCluster, memory_cluster
from support.cases import case
from support.client import factory_of
from support.console import RunningConsole, running
from support.consumers import consumer_of, send, take
from support.journals import transact
from support.operation_schemas import OperationSchemas

from vq import ConsumerConfig
from vq.client.copies import MessageCopies
from vq.console.acts.table import NOT_OVER_HTTP, OPERATIONS
from vq.console.database.database import Database
from vq.console.json_api import as_json, json_api
from vq.model import Address, Message, TopicPartition, TransactionState
from vq.operations.archives.archives import ArchivedBlock, RestoredArchive, VerifiedArchive
from vq.operations.brokers.unclean import Unclean
from vq.operations.messages.stored import read_range
from vq.reserved import DeliveryFailure
from vq.testing.waiting import until_true

Seen = Mapping[str, Any]
#: Asked with these arguments in this order; a function makes them of the answers before.
ASKED: list[tuple[str, dict[str, Any] | Callable[[Seen], dict[str, Any]]]] = [
    ("drain_group", {"group": "b3"}),
    # topics
    ("list_topics", {}),
    ("get_topic", {"topic": "t"}),
    ("describe_topic", {"topic": "t"}),
    ("read_topic_states", {}),
    ("placements", {"topic": "t"}),
    ("create_topic", {"topic": "made", "settings": {"partitions": 4}}),
    ("change_settings", lambda seen: {"topic": "made", "settings": seen["get_topic"]["settings"]}),
    ("alter_topic", {"topic": "made", "changes": {"retention_hours": 7}}),
    ("add_partitions", {"topic": "made", "count": 5}),
    ("close_topic", {"topic": "made"}),
    ("open_topic", {"topic": "made"}),
    ("drain_topic", {"topic": "made", "timeout": 20}),
    ("plan_delete", {"topic": "made"}),
    ("delete_topic", {"topic": "made"}),
    ("deleted_topics", {}),
    ("undelete_topic", {"topic": "made"}),
    ("verify", {"topics": ["made"]}),
    # messages
    ("send_message", {"topic": "t", "content": "x", "key": "k", "delay_s": 3600}),
    ("browse_messages", {"topic": "t", "start": "oldest", "partition": 0}),
    ("bounds", {"topic": "t"}),
    ("bounds_on", {"group": "b1"}),
    ("offsets_at_time", {"topic": "t", "time_ms": 0}),
    ("numbers_at", {"topic": "t", "offsets": {"0": 0}}),
    ("offsets_at_numbers", {"topic": "t", "numbers": {"0": 0}}),
    ("boundaries", {"topic": "t", "wanted": {"0": 0}}),
    ("find_messages", {"topic": "t", "key": "k1"}),
    ("list_delayed", {}),
    ("cancel_delayed", lambda seen: {"waits": seen["send_message"]}),
    ("list_dead_letters", {}),
    ("read_dead_letters", {"group": "g"}),
    ("resend_dead_letters", {"group": "g"}),
    ("delete_dead_letters", {"group": "g"}),
    # groups
    ("list_groups", {}),
    ("read_contracts", {}),
    ("describe_group", {"group": "g"}),
    ("group_history", {"group": "g"}),
    ("describe_shared_group", {"group": "shared"}),
    ("plan_reset", {"group": "g", "target": {"goal": "earliest"}}),
    ("reset", lambda seen: {"group": "g", "planned": seen["plan_reset"]}),
    ("alter_group", {"group": "g", "max_attempts": 3}),
    ("roll_group", {"group": "g", "for_s": 60, "filters": {"t": "a"}}),
    ("end_roll", {"group": "g"}),
    ("export_group", {"group": "g"}),
    ("plan_import_group", lambda seen: {"exported": seen["export_group"], "group": "copied"}),
    ("plan_clone_group", {"source": "g", "group": "cloned"}),
    (
        "plan_create_group",
        {"group": "new", "filters": {"t": ""}, "target": {"goal": "earliest"}},
    ),
    ("make_group", lambda seen: {"planned": seen["plan_create_group"]}),
    ("plan_forget_topic", {"group": "new", "topic": "t"}),
    ("forget_topic", {"group": "new", "topic": "t"}),
    ("plan_delete_group", {"group": "new"}),
    ("delete_group", {"group": "new"}),
    # explanations
    ("explain_partition", {"group": "g", "topic": "t", "partition": 0}),
    ("explain_key", {"topic": "t", "key": "k1"}),
    ("explain_message", {"group": "g", "topic": "t", "partition": 0, "offset": 0}),
    ("explain_disk", {"name": "b1"}),
    ("explain_send", {"topic": "t", "key": "k1"}),
    # transactions
    ("list_transactions", {}),
    (
        "describe_transaction",
        lambda seen: {"number": seen["list_transactions"][0]["number"]},
    ),
    ("read_transaction", lambda seen: {"number": seen["list_transactions"][0]["number"]}),
    ("commit_transaction", lambda seen: {"number": seen["list_transactions"][0]["number"]}),
    ("roll_back_transaction", lambda seen: {"number": seen["list_transactions"][1]["number"]}),
    ("forget_transaction", lambda seen: {"number": seen["list_transactions"][0]["number"]}),
    ("list_writes", {}),
    ("end_write", {"write": "w"}),
    # allocation
    ("group_loads", {}),
    ("measure_allocation", {"window_s": 0.1}),
    ("plan_allocation", {"wanted": [[["t", n], "b2"] for n in range(4)], "window_s": 0.1}),
    ("allocation_changes", lambda seen: {"plan": seen["plan_allocation"]}),
    # brokers
    ("list_broker_groups", {}),
    ("list_brokers", {}),
    ("list_blocks", {}),
    ("broker_jobs", {}),
    ("check_brokers", {}),
    ("cluster_status", {}),
    ("drain_node", {"group": "b1", "node": "n2"}),
    ("undrain_node", {"group": "b1", "node": "n2"}),
    ("undrain_group", {"group": "b1"}),
    ("switch_master", {"group": "b1"}),
    ("plan_removal", {"group": "b3"}),
    ("remove_broker", {"group": "b3"}),
    ("unclean_elections", {}),
    ("list_cut", {}),
    # who may do what
    ("list_users", {}),
    ("get_user", {"user": "ci"}),
    ("finish_rotation", {"user": "ci"}),
    ("change_user_roles", {"user": "ci", "add": ["billing"]}),
    ("add_access_rules", {"rules": ["allow user:ci read,write topic:t"]}),
    ("list_access_rules", {}),
    ("list_acts", {}),
    ("decide_access", {"user": "ci", "right": "read", "resource": "topic:t"}),
    ("remove_access_rules", {"rules": ["allow user:ci read,write topic:t"]}),
    ("set_quotas", {"quotas": ["user:ci requests=10000 time=unlimited"]}),
    ("list_quotas", {}),
    ("show_quota", {"user": "ci", "client": "etl"}),
    ("remove_quotas", {"quotas": ["user:ci"]}),
    ("remove_user", {"user": "ci"}),
    # the archive
    ("start_archive_run", {"dry_run": True}),
    ("archive_history", {}),
    ("list_archives", {}),
    # the whole cluster
    ("cluster_settings", {}),
    ("set_auto_create", {"wanted": {"partitions": 3}}),
    ("export_definitions", {"with_offsets": True}),
    (
        "plan_import_definitions",
        lambda seen: {"definitions": _with_a_topic(seen["export_definitions"])},
    ),
    ("changed_definitions", lambda seen: {"planned": seen["plan_import_definitions"]}),
    ("import_definitions", lambda seen: {"planned": seen["plan_import_definitions"]}),
    ("check_tree", {}),
    ("plan_repair_tree", {}),
    ("repair_tree", lambda seen: {"planned": seen["plan_repair_tree"]}),
]

UNCLEAN = Unclean("b1", "n2", 3, "n1", ("n1",), ("t",))
BLOCK = ArchivedBlock("b1", "n1", Address("h", 1), "t", 0, "id", 0, 9, 1, 2, 3, 4, "")
#: What these return is made here.
MADE: dict[str, Any] = {
    "plan_unclean": UNCLEAN,  # a node has to be lost for these two
    "elect_uncleanly": UNCLEAN,
    "check_transaction": None,  # a producer that lives has to know a half message
    "verify_archives": [VerifiedArchive(BLOCK, 1)],  # a block has to be archived for these
    "restore_archive": None,
    "restore_archives": [RestoredArchive(BLOCK, "gone")],
}
#: These find nodes by their names, and do not look at the address of a block.
ADDRESS_IS_IGNORED = frozenset({"verify_archives", "restore_archive", "restore_archives"})


def _with_a_topic(definitions: dict[str, Any]) -> dict[str, Any]:
    found = copy.deepcopy(definitions)
    found["topics"].append({**found["topics"][0], "topic": "imported"})
    return found


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    """Three groups, one of them with two nodes, and one that is stopped, to be removed."""
    async with memory_cluster() as made:
        await made.start("b1", "n1")
        await made.start("b1", "n2")
        await made.start("b2")
        await made.create_topic("t", partitions=4)
        await made.until_in_sync("n1", "n2")
        await (await made.start("b3")).stop()
        yield made


async def nothing(_: Message) -> None:
    pass


@pytest.fixture
async def filled(cluster: MemoryCluster, database: Database) -> AsyncIterator[RunningConsole]:
    async with factory_of(cluster, host="filler", seed=9) as factory:
        client = factory.admin.cluster
        await send(
            factory,
            *(Message("t", b"%d" % n, key=f"k{n}", tag="a", headers={"n": "1"}) for n in range(8)),
        )
        async with await consumer_of(factory) as consumer:
            await take(consumer, 2)
        async with await factory.create_consumer(
            ConsumerConfig(group="shared", model="shared")
        ) as worker:
            await worker.subscribe("t", listener=nothing).start()
        stored = (await read_range(client, "t", 0, 0)).messages()
        failure = DeliveryFailure(3, 1_764_000_000_000, "ValueError: no id")
        copies = MessageCopies(client, "g")
        for each in stored[:2]:
            await copies.give_up(each, failure, timeout=10)
        for _ in range(3):
            await transact(client, TransactionState.PREPARED, TopicPartition("t", 0))
        await factory.admin.begin_write("w")
        await factory.admin.add_user("ci", "a long password")
        await factory.admin.rotate_user("ci", "another long password")
    async with running(cluster, database, open=True) as console:
        yield console


@pytest.mark.slow
async def test_every_answer_of_every_operation_is_what_the_description_says(
    filled: RunningConsole,
) -> None:
    """And each operation of the table is asked: a new one needs a line above."""
    browser = filled.browser()
    await browser.get("/c/test/topics/t")
    schemas = OperationSchemas((await browser.http.get("/api/openapi.json")).json())
    seen: dict[str, Any] = {}

    async def ask(name: str, /, **arguments: Any) -> Any:
        answer = await browser.ask(name, **arguments)
        assert answer.status_code == 200, (name, arguments, answer.text)
        seen[name] = answer.json()
        assert schemas.wrong(name, 200, seen[name]) == [], (name, seen[name])
        return seen[name]

    for name, given in ASKED:
        await ask(name, **(given(seen) if callable(given) else given))
    broken = {**seen["plan_allocation"], "groups": []}
    assert (await browser.ask("allocation_changes", plan=broken)).status_code == 400
    await _a_plan_that_is_cancelled_and_gone_on_with(ask, seen["plan_allocation"])
    for name, value in MADE.items():
        assert schemas.wrong(name, 200, json.loads(as_json(value))) == [], name
    assert {*seen, *MADE} == set(OPERATIONS) - set(NOT_OVER_HTTP) == schemas.names


async def _a_plan_that_is_cancelled_and_gone_on_with(
    ask: Callable[..., Awaitable[Any]], plan: Any
) -> None:
    applying = asyncio.create_task(ask("apply_allocation", plan=plan, pause_s=60))

    async def one_is_moved() -> bool:
        found = await ask("list_allocations")
        return bool(found) and found[0]["done"] == 1

    await until_true(one_is_moved)
    await ask("cancel_allocation")
    await applying
    assert (await ask("describe_allocation"))["state"] == "cancelled"
    assert (await ask("resume_allocation"))["state"] == "done"


@pytest.mark.slow
def test_every_operation_has_a_schema_and_no_argument_is_an_address() -> None:
    """Whoever may act on a cluster does not send the console to an address of their choice."""
    described = OperationSchemas(json_api().openapi())
    assert described.names == set(OPERATIONS) - set(NOT_OVER_HTTP)
    for name in described.names:
        with case(name):
            schema = described.answer(name)
            assert {"$ref", "type", "anyOf"} & schema.keys(), schema
            if name not in ADDRESS_IS_IGNORED:
                assert "Address" not in described.asked_types(name)
            for status in (400, 401, 403, 404, 409, 500, 503):
                assert described.answer(name, status)["$ref"].endswith("/Problem")
