"""Who did what through this console, to what, with which outcome."""

import json
from collections.abc import Set
from typing import Any, Final

import sqlalchemy
from sqlalchemy import Connection
from starlette.responses import Response

from vq.console.acts.masking import masked_arguments
from vq.console.database.schema import audit
from vq.console.pages.page import page
from vq.console.web.context import PageContext
from vq.console.web.languages import N_
from vq.console.web.tables import Asked, Column, Kind, StateWord, TablePage, table
from vq.errors import InvalidArgument
from vq.operations.cluster.audit import OperatorAct
from vq.shown import shown

#: Acts of the cluster that a page has to search in.
_ACTS_SHOWN: Final = 500
_TONES: Final = {"done": "ok", "failed": "bad", "unknown": "warn", "begun": "warn"}


@page("/c/{cluster}/audit")
async def AUDIT(context: PageContext) -> Response:
    """List acts, the newest first; ``?q=`` searches person, token, act and subject."""
    asked = Asked.of(context.query)
    size = 10_000 if asked.export else asked.size
    name = context.site.name

    def read(connection: Connection) -> tuple[list[Any], int]:
        of: sqlalchemy.ColumnElement[bool] = audit.c.cluster.in_((name, ""))
        if asked.search:
            part = f"%{asked.search.replace('!', '!!').replace('%', '!%').replace('_', '!_')}%"
            columns = (audit.c.person, audit.c.token, audit.c.act, audit.c.subject, audit.c.outcome)
            of &= sqlalchemy.or_(*(each.ilike(part, escape="!") for each in columns))
        count = sqlalchemy.select(sqlalchemy.func.count()).select_from(audit).where(of)
        total = int(connection.execute(count).scalar() or 0)
        begin = 0 if asked.export else (asked.page - 1) * size
        query = sqlalchemy.select(audit).where(of).order_by(audit.c.id.desc())
        return list(connection.execute(query.offset(begin).limit(size))), total

    rows, total = await context.console.database.run(read)
    columns: list[Column[Any]] = [
        Column("time", N_("Time"), lambda each: each.time_ms, Kind.MOMENT, sorts=False),
        Column("person", N_("Person"), lambda each: each.person, sorts=False),
        Column("token", N_("Token"), lambda each: each.token or "", sorts=False),
        Column("address", N_("From"), lambda each: each.address, Kind.CODE, sorts=False),
        Column(
            "act",
            N_("Act"),
            lambda each: each.act,
            Kind.CODE,
            link=lambda each: context.path("audit", str(each.id)),
            sorts=False,
        ),
        Column("subject", N_("To what"), lambda each: each.subject, sorts=False),
        Column(
            "outcome",
            N_("Outcome"),
            lambda each: StateWord(
                each.outcome, _TONES.get(each.outcome, "quiet"), each.error[:200]
            ),
            Kind.STATE,
            sorts=False,
        ),
    ]
    page_of_rows = table(columns, rows, Asked(size=max(1, len(rows))))
    found = TablePage(
        columns, page_of_rows.rows, total, asked, N_("Nobody has done anything yet."), True
    )
    return context.exported(found, "audit") or context.page("audit.html", found=found)


@page("/c/{cluster}/acts")
async def ACTS(context: PageContext) -> Response:
    """List what operators did to the cluster, whichever way, as ZooKeeper has it."""
    rows = await context.run("list_acts", count=_ACTS_SHOWN)
    columns: list[Column[Any]] = [
        Column("time", N_("Time"), lambda each: each.time_ms, Kind.MOMENT, sorts=False),
        Column("person", N_("Person"), lambda each: each.person or each.user, sorts=False),
        Column(
            "act",
            N_("Act"),
            lambda each: each.act,
            Kind.CODE,
            link=lambda each: context.path("acts", each.record),
            sorts=False,
        ),
        Column("subject", N_("To what"), lambda each: each.subject, sorts=False),
        Column("outcome", N_("Outcome"), _outcome, Kind.STATE, sorts=False),
        Column("who", N_("From"), lambda each: each.who, Kind.CODE, sorts=False),
    ]
    asked = Asked.of(context.query)
    if asked.export:  # up to 4,000 characters each: a page of their own shows them
        columns += [
            Column("before", N_("Before"), lambda each: each.before, Kind.CODE, sorts=False),
            Column("after", N_("After"), lambda each: each.after, Kind.CODE, sorts=False),
        ]
    found = table(
        columns,
        rows,
        asked,
        empty=N_("Nobody has done anything yet."),
        searched=lambda each: " ".join(
            (each.person, each.user, each.who, each.identity, each.act, each.subject, each.outcome)
        ),
    )
    return context.exported(found, "acts") or context.page("acts.html", found=found)


@page("/c/{cluster}/acts/{name}")
async def ACT(context: PageContext) -> Response:
    """Show one of these acts: arguments, before, after."""
    name = context.param("name")
    rows = await context.run("list_acts", count=_ACTS_SHOWN)
    row = next((each for each in rows if each.record == name), None)
    if row is None:
        raise InvalidArgument(f"act {shown(name)} is none of the last {_ACTS_SHOWN} acts")
    topics = await context.console.door.masks(context.site.name)
    texts = {
        each: _laid_out(getattr(row, each), topics) for each in ("arguments", "before", "after")
    }
    return context.page("act.html", row=row, texts=texts, outcome=_outcome(row))


def _outcome(act: OperatorAct) -> StateWord:
    if act.changed:
        return StateWord(N_("changed since"), "bad", act.error[:200])
    return StateWord(act.outcome, _TONES.get(act.outcome, "quiet"), act.error[:200])


@page("/c/{cluster}/audit/{number}")
async def ENTRY(context: PageContext) -> Response:
    """Show one act: before, arguments, after."""
    number = context.number("an act")
    of = sqlalchemy.select(audit).where(
        audit.c.id == number, audit.c.cluster.in_((context.site.name, ""))
    )
    row = await context.console.database.run(lambda connection: connection.execute(of).first())
    if row is None:
        raise InvalidArgument(f"there is no act {number} of this cluster")
    topics = await context.console.door.masks(context.site.name)
    texts = {name: _laid_out(getattr(row, name), topics) for name in ("before", "after")}
    hidden = "" if row.subject in topics else row.arguments  # of a text that was cut
    texts = {"arguments": _laid_out(row.arguments, topics, hidden), **texts}
    return context.page("audit_entry.html", row=row, texts=texts, tone=_TONES.get(row.outcome, ""))


def _laid_out(text: str, topics: Set[str], otherwise: str | None = None) -> str:
    """Return JSON for people; topics may have been masked after it was written."""
    try:
        found = json.loads(text) if text else ""
    except ValueError:
        return text if otherwise is None else otherwise  # it was cut
    if isinstance(found, dict):
        found = masked_arguments(found, topics)
    return json.dumps(found, indent=2, ensure_ascii=False) if text else ""
