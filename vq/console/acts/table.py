"""The operations that there is a door to: those of every administrator, and the console's own."""

from collections.abc import Mapping
from typing import Any, Final

from vq.console.acts.messages import browse_messages, send_message
from vq.console.acts.reports import run_report
from vq.operations.cluster.definitions import changed_definitions
from vq.operations.messages.delayed import look_at_delayed
from vq.operations.messages.transactions import look_at_journals
from vq.operations.operation import Effect, Operation, row, rows_of
from vq.operations.table import Operations
from vq.security.rules import Resource, Right

Row = Operation[..., Any, Any]


class OwnOperations:
    """Rows beside those of ``vq.operations.table``; only the console offers them."""

    browse_messages = row(browse_messages, Effect.ASK, Right.READ, Resource.TOPIC, "consume")
    send_message = row(send_message, Effect.ACT, Right.WRITE, Resource.TOPIC, "produce")
    run_report = row(run_report, Effect.ACT, Right.READ, Resource.CLUSTER, "report lag")
    look_at_journals = row(
        look_at_journals, Effect.ASK, Right.DESCRIBE, Resource.CLUSTER, "tx list"
    )
    look_at_delayed = row(look_at_delayed, Effect.ASK, Right.READ, Resource.TOPIC, "delayed list")
    changed_definitions = row(
        changed_definitions, Effect.ASK, Right.DESCRIBE, Resource.CLUSTER, "cluster import"
    )


#: Each by its name.
OPERATIONS: Final[Mapping[str, Row]] = {
    each.name: each for each in (*rows_of(Operations), *rows_of(OwnOperations))
}

#: Operations that browsers and programs cannot ask for over HTTP, each with the reason.
NOT_OVER_HTTP: Final[Mapping[str, str]] = {
    "broker_status": "it connects to an address of the caller's choice",
    "blocks_of": "it connects to an address of the caller's choice",
    "read_bytes": "it connects to an address of the caller's choice",
    "delete_cut": "it connects to the address in the file",
    "read_placements": "it reads any number of nodes; describe_topic tells of one topic",
    "read_places": "it reads any number of nodes; describe_group tells of one group",
    "measure": "it has brokers count any number of ranges; describe_group tells of one group",
    "list_branches": "it connects to a database of the caller's choice",
    "recover_branches": "it connects to a database of the caller's choice",
    "read_columns": "it yields buffers of many megabytes, for programs beside the cluster",
    "read_range": "it returns stored bytes, for programs beside the cluster",
    "begin_write": "a step of a repeatable write of Spark",
    "begin_attempt": "a step of a repeatable write of Spark",
    "tasks_begun": "a step of a repeatable write of Spark",
    "enter_topic": "a step of a repeatable write of Spark",
    "read_written": "a step of a repeatable write of Spark",
    "commit_progress": "a stream writes its own progress",
    "look_at_journals": "list_transactions says the same, without errors as objects",
    "look_at_delayed": "list_delayed says the same, without errors as objects",
    "readable_topics": "list_topics says the same, without errors as objects",
    "readable_groups": "list_groups says the same, without errors as objects",
    "plan_moves": "its result holds what a move rests on, and does not go to a browser and back",
    "plan_emptying": "its result holds what a move rests on, and does not go to a browser and back",
    "move": "it takes the result of plan_moves",
    "plan_secure_tree": "who may write the tree is for `vq zk secure` at a terminal",
    "secure_tree": "who may write the tree is for `vq zk secure` at a terminal",
    "plan_security": "what is open is shown by `vq secure plan` at a terminal",
    "wait_for_archive_run": "it waits for long; archive_history tells how far a run is",
    "plan_balance": "a strategy may be code; the page of a group shows it",
    "export_tree": "it can have the secret of the cluster",
    "import_tree": "it takes the result of export_tree",
    "plan_import_tree": "it takes the result of export_tree",
    "add_user": "it takes a password, which is for `vq user add` at a terminal",
    "rotate_user": "it takes a password, which is for `vq user rotate` at a terminal",
    "run_report": "it takes minutes; the page Reports begins one and keeps it",
    "read_cut": "it returns stored bytes, for programs beside the cluster",
}
