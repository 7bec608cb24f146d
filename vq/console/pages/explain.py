"""Why something does not happen: a question, its answer, what that rests on, what mends it."""

import re
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from starlette.responses import Response

from vq.console.pages.page import page
from vq.console.web.context import PageContext
from vq.console.web.forms import KEY_KINDS, Field, key_of, whole_of
from vq.console.web.languages import N_
from vq.console.web.shown import Shown
from vq.console.web.statuses import status_of
from vq.console.web.tables import Asked, Column, Kind, StateWord, table
from vq.errors import InvalidArgument, VqError
from vq.operations.explain.answers import ExplainedFact, Explanation
from vq.operations.explain.disk_causes import TopicOnDisk
from vq.operations.explain.disks import DiskExplanation
from vq.shown import shown

_PLACE: Final = re.compile(r"([0-9]{1,10})\s*[:@]\s*([0-9]{1,20})")
#: What is in the address beside the question, from one question to the next.
_KEPT: Final = ("topic", "partition", "group")
Sent = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Question:
    """A question that can be asked.

    Attributes:
        name: As ``vq explain`` calls it.
        title: In English.
        needs: The fields without which it is not asked.
        fields: Of its form.
        ask: Asks it.
        command: Arguments of the command that asks the same.
    """

    name: str
    title: str
    needs: Sequence[str]
    fields: Callable[[PageContext], Sequence[Field]]
    ask: Callable[[PageContext], Awaitable[Explanation | DiskExplanation]]
    command: Callable[[Sent], Sequence[str]]


def why(context: PageContext, question: str, **values: object) -> str:
    """Return the address of a question; without a field that it needs, it shows the form."""
    return f"{context.path('explain')}?{urlencode({'question': question, **values})}"


def _text(context: PageContext, name: str, label: str, **options: Any) -> Field:
    return Field(name, label, value=context.query.get(name, ""), **options)


def _number(context: PageContext, name: str, label: str, **options: Any) -> Field:
    return _text(context, name, label, kind="number", least=0, **options)


def _topic(context: PageContext) -> Field:
    return _text(context, "topic", N_("Topic"), required=True)


def _group(context: PageContext) -> Field:
    return _text(context, "group", N_("Consumer group"), required=True)


def _keys(context: PageContext, *, required: bool) -> list[Field]:
    kind = context.query.get("key_is", KEY_KINDS[0][0])
    return [
        _text(context, "key", N_("Key"), required=required),
        Field("key_is", N_("The key is"), "select", kind, KEY_KINDS),
    ]


def _nodes(context: PageContext) -> Field:
    """Return the field of brokers: those that the last look has found, and what is asked for."""
    found = {context.query.get("node", "")} - {""}
    for each in context.site.facts.status.brokers:
        found |= {each.group.group, f"{each.group.group}/{each.name}".rstrip("/")}
    return Field(
        "node",
        N_("Broker group, or one node"),
        "select",
        context.query.get("node", ""),
        [(each, each) for each in sorted(found)],
        help=N_("Of a group, the node with the fullest disk is looked at."),
    )


def _message_of(text: str) -> dict[str, int]:
    """Return what names a message: its id, or its partition and offset.

    Raises:
        InvalidArgument: It is neither.
    """
    text = text.strip()
    if place := _PLACE.fullmatch(text):
        return {"partition": int(place[1]), "offset": int(place[2])}
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        raise InvalidArgument(
            f"{shown(text)} is not the id of a message, nor PARTITION:OFFSET such as 3:1024"
        )
    return {"id": int(text)}


async def _ask_partition(context: PageContext) -> Explanation:
    query = context.query
    found: Explanation = await context.run(
        "explain_partition", query["group"], query["topic"], whole_of(query, "partition")
    )
    return found


async def _ask_key(context: PageContext) -> Explanation:
    found: Explanation = await context.run(
        "explain_key", context.query["topic"], key_of(context.query)
    )
    return found


async def _ask_message(context: PageContext) -> Explanation:
    query = context.query
    found: Explanation = await context.run(
        "explain_message", query["group"], query["topic"], **_message_of(query["message"])
    )
    return found


async def _ask_disk(context: PageContext) -> DiskExplanation:
    found: DiskExplanation = await context.run("explain_disk", context.query["node"])
    return found


async def _ask_send(context: PageContext) -> Explanation:
    query = context.query
    found: Explanation = await context.run(
        "explain_send",
        query["topic"],
        key=key_of(query),
        partition=whole_of(query, "partition"),
        size=whole_of(query, "size"),
    )
    return found


def _key_option(query: Sent) -> list[str]:
    kind = {"number": "int", "hex": "hex"}.get(query.get("key_is", ""), "")
    return ["--key-type", kind] if kind else []


def _send_command(query: Sent) -> list[str]:
    found = [query["topic"]]
    if query.get("key", ""):
        found += ["--key", query["key"], *_key_option(query)]
    for name in ("partition", "size"):
        if query.get(name, "").strip():
            found += [f"--{name}", query[name].strip()]
    return found


QUESTIONS: Final[Mapping[str, Question]] = {
    each.name: each
    for each in (
        Question(
            "partition",
            N_("Why does a group not consume a partition?"),
            ("topic", "partition", "group"),
            lambda context: [
                _topic(context),
                _number(context, "partition", N_("Partition"), required=True),
                _group(context),
            ],
            _ask_partition,
            lambda query: [
                f"{query['topic']}/{query['partition'].strip()}",
                "--group",
                query["group"],
            ],
        ),
        Question(
            "message",
            N_("Why did a group not get a message?"),
            ("topic", "message", "group"),
            lambda context: [
                _topic(context),
                _text(
                    context,
                    "message",
                    N_("Message"),
                    required=True,
                    help=N_("Its id; or its partition and offset, such as 3:1024."),
                ),
                _group(context),
            ],
            _ask_message,
            lambda query: [query["topic"], query["message"].strip(), "--group", query["group"]],
        ),
        Question(
            "send",
            N_("Why is a message refused?"),
            ("topic",),
            lambda context: [
                _topic(context),
                *_keys(context, required=False),
                _number(
                    context,
                    "partition",
                    N_("Partition"),
                    help=N_("Without a key and a partition, all partitions are looked at."),
                ),
                _number(context, "size", N_("Size of its content in bytes")),
            ],
            _ask_send,
            _send_command,
        ),
        Question(
            "key",
            N_("Where does a key go?"),
            ("topic", "key"),
            lambda context: [_topic(context), *_keys(context, required=True)],
            _ask_key,
            lambda query: [query["topic"], query["key"], *_key_option(query)],
        ),
        Question(
            "disk",
            N_("Why does a disk fill up?"),
            ("node",),
            lambda context: [_nodes(context)],
            _ask_disk,
            lambda query: [query["node"]],
        ),
    )
}


def fact_text(fact: ExplainedFact, texts: Shown, translate: Callable[[str], str]) -> str:
    """Return the value of a fact that has one, for people, with its unit."""
    name, value = fact.name, fact.value
    assert value is not None
    if isinstance(value, bool):
        return translate(N_("yes")) if value else translate(N_("no"))
    if isinstance(value, str):
        return value
    if "bytes" in name.split("_"):
        return texts.bytes(value)
    if name.endswith("_at_s"):
        return texts.moment(int(value * 1000))
    if name.endswith("_s"):
        return texts.duration(value)
    if name.endswith("_hours"):
        return texts.duration(value * 3600)
    return str(value)


_TOPICS: Final[list[Column[TopicOnDisk]]] = [
    Column("topic", N_("Topic"), lambda each: each.topic),
    Column(
        "deleted",
        N_("State"),
        lambda each: StateWord("deleted") if each.is_deleted else StateWord("ok", "ok"),
        Kind.STATE,
    ),
    Column("bytes", N_("On the disk"), lambda each: each.disk_bytes, Kind.BYTES),
    Column("growth", N_("Bytes a day"), lambda each: each.growth_bytes_per_day, Kind.BYTES),
    Column("oldest", N_("Oldest message"), lambda each: each.oldest_ms, Kind.MOMENT),
    Column("held", N_("Kept for readers"), lambda each: each.held_bytes, Kind.BYTES),
    Column("held_by", N_("By"), lambda each: each.held_by),
    Column("overdue", N_("To be deleted by now"), lambda each: each.overdue_bytes, Kind.BYTES),
    Column(
        "unarchived", N_("To be archived by now"), lambda each: each.unarchived_bytes, Kind.BYTES
    ),
    Column("moved", N_("Of moved partitions"), lambda each: each.moved_bytes, Kind.BYTES),
]


@page("/c/{cluster}/explain")
async def EXPLAIN(context: PageContext) -> Response:
    """Show the questions, and the answer to the one that is asked."""
    query = context.query
    name = query.get("question", next(iter(QUESTIONS)))
    if name not in QUESTIONS:
        raise InvalidArgument(f"{shown(name)} is no question; take one of {', '.join(QUESTIONS)}")
    question = QUESTIONS[name]
    answer: Explanation | None = None
    topics = None
    problem, status = "", 200
    is_asked = all(query.get(each, "").strip() for each in question.needs)
    if is_asked:
        try:
            found = await question.ask(context)
        except VqError as error:
            problem, status = str(error), status_of(error)
        else:
            answer = found.answer if isinstance(found, DiskExplanation) else found
            if isinstance(found, DiskExplanation):
                topics = table(
                    _TOPICS,
                    found.topics,
                    Asked.of(query, "t."),
                    empty=N_("No topic is known to hold anything there."),
                    searched=lambda each: each.topic,
                )
    facts = None
    if answer is not None:
        texts = Shown(context.text)
        columns: list[Column[ExplainedFact]] = [
            Column("name", N_("Fact"), lambda each: each.name, Kind.CODE),
            Column("value", N_("Value"), lambda each: fact_text(each, texts, context.text)),
        ]
        known = [each for each in answer.facts if each.value is not None]
        facts = table(columns, known, Asked.of(query, "f."))
    for what, each in (("facts", facts), ("topics", topics)):
        if each is not None and (file := context.exported(each, f"explain-{name}-{what}")):
            return file
    kept = {each: query[each] for each in _KEPT if query.get(each, "")}
    return context.page(
        "explain.html",
        status,
        questions=[(each, why(context, each.name, **kept)) for each in QUESTIONS.values()],
        question=question,
        fields=question.fields(context),
        problem=problem,
        answer=answer,
        facts=facts,
        absent=[] if answer is None else [each for each in answer.facts if each.value is None],
        topics=topics,
        command=shlex.join(["vq", "explain", name, *question.command(query)]) if is_asked else "",
    )
