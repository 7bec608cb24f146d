"""Messages of a topic: browsed, found, decoded; one is sent."""

import asyncio
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from starlette.responses import Response

from vq.console.acts.descriptors import message_types
from vq.console.acts.masking import is_masked
from vq.console.acts.messages import BrowsedMessages, Start
from vq.console.pages.explain import why
from vq.console.pages.page import form, page
from vq.console.web.context import PageContext
from vq.console.web.forms import KEY_KINDS, Field, key_of, number_of, text_of, whole_of
from vq.console.web.languages import N_
from vq.console.web.statuses import status_of
from vq.decoding.contents import Decoded, Format, decoded
from vq.decoding.descriptors import MessageType
from vq.errors import InvalidArgument, OutcomeUnknown, Refused
from vq.model import Message
from vq.shown import shown

_STARTS: Final = (
    (Start.NEWEST.value, N_("newest first")),
    (Start.OLDEST.value, N_("oldest first")),
    (Start.TIME.value, N_("from a time on")),
    (Start.OFFSET.value, N_("from an offset on")),
    (Start.NUMBER.value, N_("from a message number on")),
)
#: What a search is for; without any of them messages are browsed.
_FINDS_BY: Final = ("id", "key", "tag", "where", "since", "until")
_FORMATS: Final = tuple((each.value, each.value) for each in Format)


def moment_of(text: str) -> int:
    """Return a time of a form in milliseconds since 1970; it is UTC if it says nothing else.

    Raises:
        InvalidArgument: It is none.
    """
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidArgument(f"{shown(text)} is not a time such as 2026-11-28T13:45") from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return int(found.timestamp() * 1000)


@page("/c/{cluster}/topics/{topic}/messages")
async def MESSAGES(context: PageContext) -> Response:
    """Browse messages, or find some by id, key, tag and time."""
    topic, query = context.param("topic"), context.query
    finds = any(query.get(each, "").strip() for each in _FINDS_BY)
    as_format = query.get("as", "auto")
    if as_format not in list(Format):
        raise InvalidArgument(f"{shown(as_format)} is no format; take one of {', '.join(Format)}")
    problem = ""
    messages: list[Message] = []
    following: dict[int, int] = {}
    remarks: list[str] = []
    try:
        if finds:
            messages, remarks = await _find(context, topic)
        else:
            browsed = await _browse(context, topic)
            messages, following = browsed.messages, browsed.following
            remarks = [f"{topic}/{each}: {why}" for each, why in sorted(browsed.silent.items())]
    except InvalidArgument as error:
        problem = str(error)
    hidden = await context.console.door.masks(context.site.name)
    masked = topic in hidden
    types = await message_types_of(context, [topic])
    kind = types.get(topic)
    one = next(iter(following)) if len(following) == 1 else None
    return context.page(
        "messages.html",
        400 if problem else 200,
        topic=topic,
        problem=problem,
        messages=await asyncio.to_thread(
            lambda: [
                (each, None if is_masked(each, hidden) else _told(each.content, as_format, kind))
                for each in messages
            ]
        ),
        message_type=kind.name if isinstance(kind, MessageType) else "",
        untyped=kind if isinstance(kind, str) else "",
        masked=masked,
        remarks=remarks,
        finds=finds,
        start=query.get("start", Start.NEWEST.value),
        next_query=None if one is None or finds else {"partition": one, "at": following[one]},
        browse=_browse_fields(query),
        find=_find_fields(query),
        as_format=as_format,
        why_not_found=why(context, "message", topic=topic, message=query.get("id", "").strip()),
        why_of=lambda each: why(
            context, "message", topic=topic, message=f"{each.partition}:{each.offset}"
        ),
        command=shlex.join(_find_words(topic, query) if finds else _browse_words(topic, query))
        + _of_type(kind),
    )


def _browse_words(topic: str, query: Mapping[str, str]) -> list[str]:
    start, at = query.get("start", Start.NEWEST), query.get("at", "").strip()
    partition, limit = query.get("partition", "").strip(), query.get("limit", "").strip() or "50"
    if start == Start.NUMBER:
        return ["vq", "message", "number", topic, partition or "0", "--number", at or "0"]
    words = ["vq", "consume", topic]
    if start == Start.NEWEST:
        words += ["--last", limit]
    else:
        words += ["--max", limit]
    if start == Start.TIME and at:
        words += ["--since", at]
    if start == Start.OFFSET:
        words += ["--offset", at or "0"]
        partition = partition or "0"
    return words + (["--partition", partition] if partition else [])


def _find_words(topic: str, query: Mapping[str, str]) -> list[str]:
    words = ["vq", "message", "find", topic]
    for name in _FINDS_BY:
        if query.get(name, "").strip():
            words += [f"--{name}", query[name].strip()]
    if query.get("key") and query.get("key_is", "text") != "text":
        words += ["--key-type", "int" if query["key_is"] == "number" else "hex"]
    return words


def _of_type(kind: MessageType | str | None) -> str:
    return f" --descriptors FILE --type {kind.name}" if isinstance(kind, MessageType) else ""


async def message_types_of(
    context: PageContext, topics: Sequence[str]
) -> Mapping[str, MessageType | str]:
    """Return the types of topics that have one; see ``message_types``."""
    return await context.console.database.run(
        lambda connection: message_types(connection, context.site.name, topics)
    )


def _told(content: bytes, as_format: str, kind: MessageType | str | None) -> Decoded:
    return decoded(content, Format(as_format), kind if isinstance(kind, MessageType) else None)


async def _browse(context: PageContext, topic: str) -> BrowsedMessages:
    query = context.query
    start = query.get("start", Start.NEWEST.value)
    if start not in list(Start):
        raise InvalidArgument(f"{shown(start)} is no start; take one of {', '.join(Start)}")
    at = query.get("at", "").strip()
    where = 0
    if start == Start.TIME:
        where = moment_of(at)
    elif at and start in (Start.OFFSET, Start.NUMBER):
        where = whole_of({"at": at}, "at") or 0
    found: BrowsedMessages = await context.run(
        "browse_messages",
        topic,
        partition=whole_of(query, "partition"),
        start=Start(start),
        at=where,
        limit=whole_of(query, "limit") or 50,
    )
    return found


async def _find(context: PageContext, topic: str) -> tuple[list[Message], list[str]]:
    query = context.query
    asked: dict[str, Any] = {"limit": whole_of(query, "limit") or 50}
    if query.get("id", "").strip():
        asked["id"] = whole_of(query, "id")
    if (key := key_of(query)) is not None:
        asked["key"] = key
    for name in ("tag", "where"):
        if query.get(name, "").strip():
            asked[name] = query[name].strip()
    for name in ("since", "until"):
        if query.get(name, "").strip():
            asked[f"{name}_ms"] = moment_of(query[name])
    found = await context.run("find_messages", topic, **asked)
    remarks = [] if found.stopped is None else [f"the search stopped early: {found.stopped}"]
    remarks += [str(each) for each in getattr(found, "gaps", ())]
    return list(found.messages), remarks


def _browse_fields(query: Any) -> list[Field]:
    return [
        Field("start", N_("Show"), "select", query.get("start", "newest"), _STARTS),
        Field("at", N_("Time, offset or number"), value=query.get("at", "")),
        Field("partition", N_("Partition"), "number", query.get("partition", "")),
        Field("limit", N_("At most"), "number", query.get("limit", "50"), least=1, most=200),
        Field("as", N_("Contents as"), "select", query.get("as", "auto"), _FORMATS),
    ]


def _find_fields(query: Any) -> list[Field]:
    return [
        Field("id", N_("Id"), value=query.get("id", "")),
        Field("key", N_("Key"), value=query.get("key", "")),
        Field(
            "key_is",
            N_("The key is"),
            "select",
            query.get("key_is", "text"),
            KEY_KINDS,
        ),
        Field("tag", N_("Tag"), value=query.get("tag", "")),
        Field("where", N_("Headers match"), value=query.get("where", "")),
        Field("since", N_("Since"), "moment", query.get("since", "")),
        Field("until", N_("Until"), "moment", query.get("until", "")),
        Field("as", N_("Contents as"), "select", query.get("as", "auto"), _FORMATS),
    ]


@page("/c/{cluster}/topics/{topic}/content")
async def CONTENT(context: PageContext) -> Response:
    """Return the bytes of one message as a file."""
    topic = context.param("topic")
    if topic in await context.console.door.masks(context.site.name):
        raise InvalidArgument(f"contents of {topic} are masked in this console")
    partition, offset = whole_of(context.query, "partition"), whole_of(context.query, "offset")
    found = await context.run(
        "browse_messages", topic, partition=partition, start=Start.OFFSET, at=offset or 0, limit=1
    )
    if not found.messages or found.messages[0].offset != offset:
        raise InvalidArgument(f"no message of {topic}/{partition} begins at offset {offset}")
    return Response(
        found.messages[0].content,
        media_type="application/octet-stream",
        headers={
            "Content-Disposition": f'attachment; filename="message-{found.messages[0].id}.bin"',
            "Content-Security-Policy": "sandbox",
        },
    )


@form("/c/{cluster}/topics/{topic}/send")
async def SEND(context: PageContext) -> Response:
    """Send one message."""
    topic, problem, status, refused = context.param("topic"), "", 200, ""
    if context.posted:
        content = context.form.get("content", "")
        try:
            sent = await context.run(
                "send_message",
                topic,
                text_of(context.form, "content", most=1_000_000),
                key=context.form.get("key") or None,
                tag=context.form.get("tag") or None,
                headers=headers_of(text_of(context.form, "headers", most=32_768)),
                delay_s=number_of(context.form, "delay_s"),
            )
        except InvalidArgument as error:
            problem, status = str(error), status_of(error)
        except (Refused, OutcomeUnknown) as error:
            problem, status = f"{type(error).__name__}: {error}", status_of(error)
            refused = why(
                context,
                "send",
                topic=topic,
                key=context.form.get("key", ""),
                size=len(content.encode()),
            )
        else:
            if number_of(context.form, "delay_s"):
                context.say(N_("Sent: message %(id)s waits for its time"), id=sent.id)
                return context.go("delayed")
            context.say(
                N_("Sent: partition %(partition)s, offset %(offset)s, id %(id)s"),
                partition=sent.partition,
                offset=sent.offset,
                id=sent.id,
            )
            return context.go("topics", topic, "messages")
    return context.page(
        "send.html",
        status,
        topic=topic,
        problem=problem,
        refused=refused,
        fields=[
            Field("content", N_("Content"), "area", context.form.get("content", "")),
            Field("key", N_("Key"), value=context.form.get("key", "")),
            Field("tag", N_("Tag"), value=context.form.get("tag", "")),
            Field(
                "headers",
                N_("Headers"),
                "area",
                context.form.get("headers", ""),
                help=N_("One in a line: name: value"),
            ),
            Field(
                "delay_s",
                N_("Deliver after so many seconds"),
                "number",
                context.form.get("delay_s", ""),
            ),
        ],
        command=f"echo CONTENT | vq produce {topic}",
    )


def headers_of(text: str) -> dict[str, str]:
    """Return headers that are written one in a line.

    Raises:
        InvalidArgument: A line is not ``name: value``.
    """
    found = {}
    for line in text.split("\n"):
        if line.strip():
            name, colon, value = line.partition(":")
            if not colon or not name.strip():
                raise InvalidArgument(f"header line {shown(line)} is not like `name: value`")
            found[name.strip()] = value.strip()
    return found
