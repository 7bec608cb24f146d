"""Dead letters of consumer groups: looked at, sent again, deleted."""

from typing import Any, Final

from starlette.responses import Response

from vq.console.acts.masking import is_masked
from vq.console.pages.messages import message_types_of
from vq.console.pages.page import form, page
from vq.console.web.context import PageContext
from vq.console.web.forms import confirm, number_of, whole_of
from vq.console.web.languages import N_
from vq.console.web.tables import Asked, Column, Kind, table
from vq.decoding.contents import Decoded, decoded
from vq.decoding.descriptors import MessageType
from vq.errors import InvalidArgument, UnknownTopic
from vq.model import Message
from vq.operations.messages.dead_letters import DeadLetters
from vq.operations.messages.settling import LetterState

_SHOWN_MAX: Final = 100


@page("/c/{cluster}/dead-letters")
async def DEAD_LETTERS(context: PageContext) -> Response:
    """List the groups that have some."""
    columns: list[Column[DeadLetters]] = [
        Column(
            "group",
            N_("Group"),
            lambda each: each.group,
            link=lambda each: context.path("dead-letters", each.group),
        ),
        Column("open", N_("Open"), lambda each: each.letters.get(LetterState.OPEN, 0), Kind.COUNT),
        Column(
            "resending",
            N_("Being sent again"),
            lambda each: each.letters.get(LetterState.RESENDING, 0),
            Kind.COUNT,
        ),
        Column(
            "resent",
            N_("Sent again"),
            lambda each: each.letters.get(LetterState.RESENT, 0),
            Kind.COUNT,
        ),
        Column(
            "deleted",
            N_("Deleted"),
            lambda each: each.letters.get(LetterState.DELETED, 0),
            Kind.COUNT,
        ),
        Column("oldest", N_("Oldest open"), lambda each: each.oldest_ms or "", Kind.MOMENT),
    ]
    found = table(
        columns,
        await context.run("list_dead_letters"),
        Asked.of(context.query),
        empty=N_("No group has given a message up."),
        searched=lambda each: each.group,
    )
    return context.exported(found, "dead-letters") or context.page(
        "dead_letters.html", found=found, command="vq dlq list"
    )


@page("/c/{cluster}/dead-letters/{group}")
async def LETTERS(context: PageContext) -> Response:
    """Show the dead letters of a group, the first ones that are not settled."""
    group, reason = context.param("group"), context.query.get("reason") or None
    settled = context.query.get("settled") == "1"
    letters: list[Any] = []
    more = False
    problem = ""
    try:
        found = context.console.door.each(
            context.visitor.person,
            context.site,
            "read_dead_letters",
            group,
            reason=reason,
            settled=settled,
        )
        async for each in found:
            if len(letters) == _SHOWN_MAX:
                more = True
                break
            letters.append(each)
        await found.aclose()
    except UnknownTopic:  # its topic is made with the first one
        await context.run("describe_group", group, count=False)
    except InvalidArgument as error:
        problem = str(error)
    hidden = await context.console.door.masks(context.site.name)
    origins = {each.message.origin.topic for each in letters if each.message.origin is not None}
    types = await message_types_of(context, sorted(origins))

    def told(message: Message) -> Decoded:
        kind = None if message.origin is None else types.get(message.origin.topic)
        return decoded(
            message.content, message_type=kind if isinstance(kind, MessageType) else None
        )

    return context.page(
        "letters.html",
        group=group,
        problem=problem,
        letters=[
            (each, None if is_masked(each.message, hidden) else told(each.message))
            for each in letters
        ],
        more=more,
        reason=reason or "",
        settled=settled,
        command=f"vq dlq read {group}",
    )


@form("/c/{cluster}/dead-letters/{group}/resend")
async def RESEND(context: PageContext) -> Response:
    """Send the open dead letters of a group again."""
    group, sent = context.param("group"), context.form
    one = whole_of(sent if context.posted else context.query, "id")
    if context.posted:
        rate = number_of(sent, "rate")
        if rate is not None and rate <= 0:
            raise InvalidArgument(f"rate = {rate:g} is not above 0 messages per second")
        job = await context.start(
            "resend_dead_letters",
            group,
            reason=sent.get("reason") or None,
            ids=() if one is None else (one,),
            to=sent.get("to") or None,
            rate=rate or 100.0,
        )
        return context.go("jobs", str(job.number))
    return context.page(
        "letters_resend.html",
        group=group,
        reason=context.query.get("reason", ""),
        one=one,
        command=_command("resend", group, one),
    )


@form("/c/{cluster}/dead-letters/{group}/delete")
async def DELETE(context: PageContext) -> Response:
    """Settle the open dead letters of a group as deleted."""
    group = context.param("group")
    one = whole_of(context.form if context.posted else context.query, "id")
    if context.posted:
        confirm(context.form, group)
        count = await context.run(
            "delete_dead_letters",
            group,
            reason=context.form.get("reason") or None,
            ids=() if one is None else (one,),
        )
        context.say(N_("Deleted: %(count)s dead letters of %(group)s"), count=count, group=group)
        return context.go("dead-letters", group)
    return context.page(
        "letters_delete.html",
        group=group,
        reason=context.query.get("reason", ""),
        one=one,
        command=_command("delete", group, one),
    )


def _command(act: str, group: str, one: int | None) -> str:
    return f"vq dlq {act} {group}{'' if one is None else f' --id {one}'} --yes"
