"""Definitions of a cluster: downloaded as a file, and imported by a plan that is seen first."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Final

from starlette.responses import Response

from vq.console.accounts.accounts import AccountRole, now_ms
from vq.console.acts.door import LongAct
from vq.console.clusters.kept import KeptDefinitions
from vq.console.pages.page import form, page, post
from vq.console.web.context import PageContext
from vq.console.web.forms import Field, checked_of, confirm, text_of
from vq.console.web.languages import N_
from vq.console.web.statuses import status_of
from vq.console.web.tables import Asked, Column, Kind, StateWord, table
from vq.errors import InvalidArgument, InvalidState
from vq.operations.cluster.definition_file import (
    Definitions,
    definitions_from,
    definitions_json,
)
from vq.operations.cluster.definitions import (
    DefinitionAction,
    DefinitionStep,
    PlannedDefinitions,
)
from vq.shown import shown

#: Bytes of a file of definitions that are taken: that of 2,000 topics and 10,000 groups has 10 MiB.
FILE_BYTES_MAX: Final = 32 * 1024 * 1024
_ACTIONS: Final[Mapping[DefinitionAction, StateWord]] = {
    DefinitionAction.MAKE: StateWord(N_("make"), "ok"),
    DefinitionAction.CHANGE: StateWord(N_("change"), "warn"),
    DefinitionAction.LEAVE: StateWord(N_("leave as it is")),
    DefinitionAction.DELETE: StateWord(N_("delete"), "bad"),
}


def _offsets_field(sent: Mapping[str, str], label: str, help: str) -> Field:
    return Field("offsets", label, "check", checked_of(sent, "offsets"), help=help)


@form("/c/{cluster}/definitions", AccountRole.VIEWER, FILE_BYTES_MAX)
async def DEFINITIONS(context: PageContext) -> Response:
    """Offer the file, and take one: that makes a plan, and changes nothing."""
    sent, problem, status = context.form, "", 200
    if context.posted:
        context.console.door.check(context.visitor.person, "import_definitions")
        try:
            return await _make(context, await _read(sent))
        except InvalidArgument as error:
            problem, status = str(error), status_of(error)
    return context.page(
        "definitions.html",
        status,
        problem=problem,
        download=[
            _offsets_field(
                {}, N_("With offsets of groups"), N_("They mean something in this cluster only.")
            )
        ],
        upload=[
            Field("document", N_("or its text"), "area", sent.get("document", "")),
            Field(
                "prune",
                N_("Delete topics and groups that are not in the file"),
                "check",
                checked_of(sent, "prune"),
            ),
            _offsets_field(
                sent,
                N_("Groups that are made get the offsets of the file"),
                N_("Only if the file is of this cluster."),
            ),
        ],
        plans=context.site.definitions.all(),
        command="vq cluster export FILE; vq cluster import FILE",
    )


async def _read(sent: Mapping[str, str]) -> Definitions:
    """Return the definitions that a form has.

    Raises:
        InvalidArgument: They are none.
    """
    text = text_of(sent, "document", most=FILE_BYTES_MAX) or text_of(
        sent, "file", most=FILE_BYTES_MAX
    )
    if not text.strip():
        raise InvalidArgument("choose a file of definitions, or paste its text")
    try:  # a large one takes a second: pages of others go on meanwhile
        return await asyncio.to_thread(lambda: definitions_from(json.loads(text)))
    except InvalidArgument:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"the file is not JSON: {error}") from None


async def _make(
    context: PageContext, definitions: Definitions, options: PlannedDefinitions | None = None
) -> Response:
    """Make a plan, as the form or an earlier plan says, and show it."""
    prune = checked_of(context.form, "prune") if options is None else options.prune
    offsets = checked_of(context.form, "offsets") if options is None else options.with_offsets
    planned = await context.run(
        "plan_import_definitions", definitions, prune=prune, with_offsets=offsets
    )
    kept = context.site.definitions
    number = kept.next_number()
    kept.keep(KeptDefinitions(number, context.visitor.person.name, now_ms(), planned))
    return context.go("definitions", "plans", str(number))


@page("/c/{cluster}/definitions/file")
async def FILE(context: PageContext) -> Response:
    """Return the definitions as the file that ``vq cluster import`` takes."""
    found = await context.run(
        "export_definitions", with_offsets=checked_of(context.query, "offsets")
    )
    name = f"{context.site.name}-definitions.json"
    return Response(
        json.dumps(definitions_json(found), indent=2, ensure_ascii=False) + "\n",
        media_type="application/json",
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


def _kept(context: PageContext) -> KeptDefinitions:
    found = context.site.definitions.find(context.param("number"))
    if found is None:
        raise InvalidArgument(
            f"the console has no plan {shown(context.param('number'))} of definitions: it keeps "
            "the last ones since its start; make the plan again"
        )
    return found


def step_columns(context: PageContext, *, taken: bool) -> list[Column[DefinitionStep]]:
    """Return the columns of steps: of a plan, or of what was done."""

    def action(each: DefinitionStep) -> StateWord:
        if each.why_not and not taken:
            return StateWord(N_("cannot be done"), "bad")
        return _ACTIONS[each.action]

    def outcome(each: DefinitionStep) -> StateWord:
        return StateWord(N_("not done"), "bad") if each.why_not else StateWord(N_("done"), "ok")

    def link(each: DefinitionStep) -> str | None:
        if each.created == 0 or each.kind == "settings":
            return None
        folder = {"topic": "topics", "group": "groups", "broker_group": "brokers"}[each.kind]
        return context.path(folder, each.name)

    found: list[Column[DefinitionStep]] = [
        Column("action", N_("Act"), action, Kind.STATE),
        Column("kind", N_("Kind"), lambda each: each.kind, Kind.CODE),
        Column("name", N_("Name"), lambda each: each.name, link=link),
        Column(
            "changes",
            N_("Changes"),
            lambda each: [f"{one.field}: {one.before} → {one.after}" for one in each.changes],
            Kind.LIST,
            sorts=False,
        ),
    ]
    if taken:
        found.append(Column("outcome", N_("Outcome"), outcome, Kind.STATE))
    return [*found, Column("why_not", N_("Why not"), lambda each: each.why_not, sorts=False)]


def worth_showing(steps: Sequence[DefinitionStep]) -> list[DefinitionStep]:
    """Return the steps that do something, or cannot."""
    return [each for each in steps if each.action is not DefinitionAction.LEAVE or each.why_not]


@page("/c/{cluster}/definitions/plans/{number}")
async def PLAN(context: PageContext) -> Response:
    """Show a plan, what has changed since, and what came of it."""
    kept = _kept(context)
    planned = kept.planned
    changes: list[DefinitionStep] = []
    if kept.state == "draft":
        changes = await context.run("changed_definitions", planned)
    steps = planned.steps if kept.outcome is None else kept.outcome
    found = table(
        step_columns(context, taken=kept.outcome is not None),
        worth_showing(steps),
        Asked.of(context.query),
        empty=N_("Nothing has to change: the cluster is as the file says."),
        searched=lambda each: f"{each.kind} {each.name}",
    )
    return context.exported(found, f"definitions-{kept.number}") or context.page(
        "definitions_plan.html",
        kept=kept,
        planned=planned,
        counts={each.value: planned.count(each) for each in DefinitionAction},
        refused=[each for each in steps if each.why_not],
        job=context.console.door.jobs.get(kept.job or 0),
        has_work=any(
            each.action is not DefinitionAction.LEAVE and not each.why_not for each in planned.steps
        ),
        changes=changes,
        found=found,
        live=kept.state == "running",
        command="vq cluster import FILE"
        + " --prune" * planned.prune
        + " --offsets" * planned.with_offsets
        + " --yes",
    )


@post("/c/{cluster}/definitions/plans/{number}/act")
async def ACT(context: PageContext) -> Response:
    """Carry a plan out as a long act, or make it again."""
    kept, act = _kept(context), context.form.get("act", "")
    if act == "again":
        return await _make(context, kept.planned.definitions, kept.planned)
    if act != "apply":
        raise InvalidArgument(f"{shown(act)} is no act on a plan")
    confirm(context.form, context.site.name)
    if kept.job is not None:
        raise InvalidState(f"plan {kept.number} was carried out already: make it again")
    kept.job = 0  # nobody else begins it meanwhile
    try:
        kept.job = await _begin(context, kept)
    finally:
        kept.job = kept.job or None
    return context.go("definitions", "plans", str(kept.number))


async def _begin(context: PageContext, kept: KeptDefinitions) -> int:
    """Begin to carry a plan out; return the number of the act.

    Raises:
        InvalidState: Something has changed since the plan.
    """
    for each in await context.run("changed_definitions", kept.planned):
        raise InvalidState(
            f"{each.kind} {shown(each.name)} has changed since the plan; nothing was done: make it "
            "again"
        )

    async def ended(job: LongAct) -> None:
        kept.outcome, kept.error = job.result, job.error

    before = worth_showing(kept.planned.steps)
    job = await context.start("import_definitions", kept.planned, before=before, on_end=ended)
    return job.number
