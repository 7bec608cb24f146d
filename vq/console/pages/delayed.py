"""Messages that are delivered later: listed, cancelled."""

from collections.abc import Mapping
from typing import Final

from starlette.responses import Response

from vq.console.pages.page import page, post
from vq.console.web.context import PageContext
from vq.console.web.forms import whole_of
from vq.console.web.languages import N_
from vq.console.web.tables import Asked, Column, Kind, table
from vq.errors import InvalidArgument
from vq.model import Cancellation, SendResult
from vq.operations.messages.delayed import DELAYED_MESSAGES, DelayedMessage


@page("/c/{cluster}/delayed")
async def DELAYED(context: PageContext) -> Response:
    """List those that are due first."""
    topic = context.query.get("topic") or None
    found, silent = await context.run("look_at_delayed", topic, limit=DELAYED_MESSAGES)
    columns: list[Column[DelayedMessage]] = [
        Column("due", N_("Due"), lambda each: each.due_ms, Kind.MOMENT),
        Column(
            "topic",
            N_("Topic"),
            lambda each: each.topic,
            link=lambda each: context.path("topics", each.topic),
        ),
        Column("partition", N_("Partition"), lambda each: each.partition, Kind.COUNT),
        Column("id", N_("Id"), lambda each: str(each.waits.id), Kind.CODE),
        Column("key", N_("Key"), lambda each: "" if each.key is None else str(each.key)),
        Column("tag", N_("Tag"), lambda each: each.tag or ""),
        Column("size", N_("Size"), lambda each: each.record_bytes, Kind.BYTES),
    ]
    listed = table(
        columns,
        found.first,
        Asked.of(context.query),
        empty=N_(
            "No message waits for its time. One is sent with delay_s, or by the form of a topic."
        ),
        searched=lambda each: f"{each.topic} {each.key} {each.tag} {each.waits.id}",
    )
    return context.exported(listed, "delayed") or context.page(
        "delayed.html",
        found=listed,
        waiting=found.waiting,
        unreadable=found.unreadable,
        silent=list(map(str, silent)),
        topic=topic or "",
        command="vq delayed list",
    )


_OUTCOMES: Final[Mapping[Cancellation, str]] = {
    Cancellation.UNKNOWN: N_("Message %(id)s: its broker did not answer. Cancel it again."),
    Cancellation.CANCELLED: N_("Message %(id)s is cancelled: nobody gets it."),
    Cancellation.DELIVERED: N_("Message %(id)s is not cancelled: it was delivered before."),
}


@post("/c/{cluster}/delayed/cancel")
async def CANCEL(context: PageContext) -> Response:
    """Have one delivered to nobody."""
    values = [whole_of(context.form, each) for each in ("partition", "offset", "id")]
    if None in values:
        raise InvalidArgument("partition, offset and id of the message are needed")
    partition, offset, number = (each or 0 for each in values)
    outcome = await context.run("cancel_delayed", SendResult(partition, offset, number))
    context.say(_OUTCOMES[outcome], id=number)
    return context.go("delayed")
