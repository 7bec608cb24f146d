"""Topics for broker groups by measured load: a board to move partitions on, an advisor, plans."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import sqlalchemy
from starlette.responses import Response

from vq.console.acts.door import LongAct, text_of
from vq.console.acts.kept_plans import keep_plan, note_outcome
from vq.console.database.schema import plans
from vq.console.pages.page import page, post
from vq.console.web.context import PageContext
from vq.console.web.forms import Field, confirm, number_of, whole_of
from vq.console.web.forms import text_of as text_in
from vq.console.web.languages import N_
from vq.console.web.tables import Asked, Column, Kind, StateWord, table
from vq.errors import InvalidArgument
from vq.model import COMMON_POOL, TopicPartition
from vq.operations.allocation.board import GoalScore
from vq.operations.allocation.facts import AllocationFacts, GroupLoad, MeasuredPartition
from vq.operations.allocation.goals import AllocationGoals
from vq.operations.allocation.plan_json import plan_from_json, plan_to_json, wanted_moves
from vq.operations.allocation.plans import AllocatedGroup, AllocatedMove, AllocationPlan
from vq.shown import shown
from vq.tasks import begin_task

N = TypeVar("N", int, float)
#: A measurement is shown for so long before the page measures again by itself.
_FRESH_S: Final = 300.0
_FIRST_WINDOW_S: Final = 0.5
#: A page waits so long for the first measurement; then it says that it is under way.
WAIT_S: Final = 0.7
_WINDOW_S: Final = 10.0
_TOPICS_SHOWN: Final = 20
_GROUPS_SHOWN: Final = 12
_MOVES_MAX: Final = 10_000


async def facts_of(context: PageContext, window_s: float | None = None) -> AllocationFacts:
    """Return the last measurement of a cluster; measured now if it is old, or if asked for."""
    site = context.site
    found = site.allocation
    if window_s is None and found is not None and time.monotonic() - found[0] < _FRESH_S:
        return found[1]
    facts: AllocationFacts = await context.run(
        "measure_allocation", window_s=window_s or _FIRST_WINDOW_S
    )
    site.allocation = time.monotonic(), facts
    return facts


async def _facts_at_hand(context: PageContext) -> AllocationFacts | None:
    """Return the last measurement, and have it made anew if it is old; None: there is none yet.

    Nobody waits longer than a moment: of a large cluster a measurement takes seconds.
    """
    site = context.site
    if site.measuring is not None and site.measuring.done():
        ended, site.measuring = site.measuring, None
        ended.result()  # or tells why there is none
    found = site.allocation
    if found is not None and time.monotonic() - found[0] < _FRESH_S:
        return found[1]
    if site.measuring is None:
        site.measuring = begin_task(facts_of(context, _FIRST_WINDOW_S))
    if found is not None:
        return found[1]
    task = site.measuring
    done, _ = await asyncio.wait({task}, timeout=WAIT_S)
    if not done:
        return None
    site.measuring = None
    return task.result()


# The board ------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class BoardTopic:
    """A row of the board: a topic, and its partitions by group."""

    topic: str
    pool: str | None
    bytes_per_s: float | None
    cells: Mapping[str, Sequence[MeasuredPartition]]


def board_of(
    facts: AllocationFacts,
    groups: Sequence[str],
    topics: Sequence[str],
    rates: Mapping[str, float | None],
) -> list[Any]:
    """Return the rows of a board; ``rates`` are those of ``rates_of``."""
    cells: dict[str, dict[str, list[MeasuredPartition]]] = {each: {} for each in topics}
    for (topic, _), each in sorted(
        each for each in facts.partitions.items() if each[0].topic in cells
    ):
        if each.group is not None and each.group in groups:
            cells[topic].setdefault(each.group, []).append(each)
    return [
        BoardTopic(each, facts.topics[each].pool, rates.get(each), cells[each]) for each in topics
    ]


def rates_of(facts: AllocationFacts) -> dict[str, float | None]:
    """Return the bytes per second of each topic; None: a partition of it is not known."""
    found: dict[str, float | None] = dict.fromkeys(facts.topics, 0.0)
    for (topic, _), each in facts.partitions.items():
        before = found.get(topic)
        if topic in found:
            unknown = before is None or each.bytes_per_s is None
            found[topic] = None if unknown else before + each.bytes_per_s  # type: ignore[operator]
    return found


def _group_columns(context: PageContext) -> list[Column[GroupLoad]]:
    return [
        Column(
            "group",
            N_("Broker group"),
            lambda each: each.group,
            link=lambda each: context.path("brokers", each.group),
        ),
        Column("pool", N_("Pool"), lambda each: each.pool or COMMON_POOL),
        Column(
            "labels",
            N_("Labels"),
            lambda each: [f"{name}={value}" for name, value in each.labels.items()],
            Kind.LIST,
            sorts=False,
        ),
        Column(
            "state",
            N_("State"),
            lambda each: (
                StateWord(N_("no master"), "bad", each.error)
                if not each.alive
                else StateWord(N_("draining"), "warn")
                if each.draining
                else StateWord(N_("good"), "ok", each.error)
            ),
            Kind.STATE,
        ),
        Column("partitions", N_("Partitions"), lambda each: each.partitions, Kind.COUNT),
        Column("bytes_per_s", N_("Bytes in"), lambda each: each.bytes_per_s, Kind.RATE),
        Column("messages_per_s", N_("Messages in"), lambda each: each.messages_per_s, Kind.PER_S),
        Column("busy", N_("Busy"), lambda each: each.busy, Kind.PERCENT),
        Column(
            "flush",
            N_("Flush"),
            lambda each: None if each.flush_ms is None else each.flush_ms / 1000,
            Kind.DURATION,
        ),
        Column("stored", N_("Stored"), lambda each: each.stored_bytes, Kind.BYTES),
        Column("free", N_("Free"), lambda each: each.disk_bytes_free, Kind.BYTES),
        Column(
            "full_in",
            N_("Full in"),
            lambda each: (
                None if each.disk_full_in_hours is None else each.disk_full_in_hours * 3600
            ),
            Kind.DURATION,
        ),
    ]


@page("/c/{cluster}/allocation")
async def ALLOCATION(context: PageContext) -> Response:
    """Show the board."""
    return await _board_page(context)


async def _board_page(context: PageContext, problem: str = "") -> Response:
    """Return the board; ``problem``: why the form that was sent makes no plan. It stays filled."""
    facts = await _facts_at_hand(context)
    runs = await context.run("list_allocations")
    running = next((each for each in runs if each.state in ("running", "interrupted")), None)
    if running is None and runs and runs[0].state == "failed":
        running = runs[0]
    if facts is None:
        begun = context.page("allocation_begun.html", running=running, command="vq balance load")
        begun.headers["Refresh"] = "2"
        return begun
    query = context.query
    wanted = query.get("topic", "").strip().casefold()
    rates = rates_of(facts)
    topics = sorted(
        (each for each in facts.topics if wanted in each.casefold()),
        key=lambda each: (-(rates[each] or 0.0), each),
    )
    pools = sorted({each.pool or "" for each in facts.groups.values()})
    pool = query.get("pool")
    groups = [
        name
        for name, each in sorted(facts.groups.items())
        if pool is None or pool == (each.pool or "")
    ]
    begin = min(max(0, whole_of(query, "groups") or 0), max(0, len(groups) - 1))
    shown_groups = groups[begin : begin + _GROUPS_SHOWN]
    number = max(1, whole_of(query, "page") or 1)
    shown_topics = topics[(number - 1) * _TOPICS_SHOWN : number * _TOPICS_SHOWN]
    loads = table(
        _group_columns(context),
        list(facts.groups.values()),
        Asked.of(query, "g."),
        empty=N_("There is no broker group."),
        searched=lambda each: f"{each.group} {each.pool or ''}",
    )
    return context.exported(loads, "loads") or context.page(
        "allocation.html",
        400 if problem else 200,
        problem=problem,
        sent=context.form,
        facts=facts,
        loads=loads,
        board=board_of(facts, shown_groups, shown_topics, rates),
        groups=[facts.groups[each] for each in shown_groups],
        all_groups=sorted(facts.groups),
        groups_before=max(0, begin - _GROUPS_SHOWN) if begin else None,
        groups_after=begin + _GROUPS_SHOWN if begin + _GROUPS_SHOWN < len(groups) else None,
        pools=pools,
        pool=pool,
        topic=query.get("topic", ""),
        number=number,
        pages=max(1, -(-len(topics) // _TOPICS_SHOWN)),
        most=max((each.bytes_per_s or 0.0 for each in facts.groups.values()), default=0.0),
        skews=skews(facts),
        running=running,
        runs=runs,
        drafts=await _drafts(context, {each.plan: each.state for each in runs}),
        goal_fields=[
            replace(each, value=context.form.get(each.name, each.value)) for each in goal_fields()
        ],
        command="vq balance load; vq balance plan",
    )


def skews(facts: AllocationFacts) -> list[tuple[str, float | None]]:
    """Return, for each sum, the highest group as a multiple of the mean of those that take some."""
    groups = [each for each in facts.groups.values() if each.alive and not each.draining]
    found = []
    for title, name in (
        (N_("bytes"), "bytes_per_s"),
        (N_("messages"), "messages_per_s"),
        (N_("stored"), "stored_bytes"),
        (N_("partitions"), "partitions"),
    ):
        values = [getattr(each, name) for each in groups]
        known = [each for each in values if each is not None]
        mean = sum(known) / len(known) if known else 0
        skew = None
        if values and len(known) == len(values):
            skew = max(known) / mean if mean else 1.0
        found.append((title, skew))
    return found


async def _drafts(context: PageContext, states: Mapping[str, str]) -> list[Any]:
    """Return the newest plans; ``states``: of those that the cluster knows, which knows better."""
    query = (
        sqlalchemy.select(
            plans.c.id, plans.c.made_ms, plans.c.person, plans.c.state, plans.c.plan_id
        )
        .where(plans.c.cluster == context.site.name)
        .order_by(plans.c.id.desc())
        .limit(10)
    )
    rows = await context.console.database.run(lambda each: list(each.execute(query)))
    return [{**row._mapping, "state": states.get(row.plan_id, row.state)} for row in rows]


def goal_fields() -> list[Field]:
    """Return the goals as fields of a form."""
    usual = AllocationGoals()
    return [
        Field(
            "soft",
            N_("Even out, the most important first"),
            value=", ".join(map(str, usual.soft)),
            help=N_("Some of: bytes, messages, stored, partitions, topics."),
        ),
        Field(
            "skew",
            N_("A group has at most so many times the mean"),
            "number",
            usual.skew,
            least=1,
            most=100,
        ),
        Field("moves_max", N_("At most so many moves"), "number", 100, least=0, most=_MOVES_MAX),
        Field(
            "exclude_groups",
            N_("Leave these groups alone"),
            help=N_("Names with commas between them."),
        ),
        Field(
            "exclude_topics",
            N_("Leave these topics alone"),
            help=N_("Names with commas between them."),
        ),
        Field(
            "pools",
            N_("Isolate topics in pools"),
            "area",
            help=N_("One in a line: topic=pool. Only groups of that pool get its partitions."),
        ),
        Field("racks_min", N_("Racks of a group, at least"), "number", 0, least=0, most=100),
        Field(
            "disk_used_max",
            N_("Disks filled at most, as a share"),
            "number",
            usual.disk_used_max,
            least=0.01,
            most=1,
        ),
    ]


def goals_from(sent: Mapping[str, str]) -> AllocationGoals:
    """Return the goals that a form has.

    Raises:
        InvalidArgument: One is not valid.
    """
    usual = AllocationGoals()
    pools: dict[str, str | None] = {}
    for line in text_in(sent, "pools", most=10_000).split("\n"):
        if line.strip():
            topic, equals, pool = line.partition("=")
            if not equals:
                raise InvalidArgument(f"pool line {shown(line)} is not like topic=pool")
            pools[topic.strip()] = pool.strip() or None
    soft = _names(sent.get("soft", ""))
    return AllocationGoals(
        soft=tuple(soft) if soft else usual.soft,  # type: ignore[arg-type]
        skew=_or(number_of(sent, "skew"), usual.skew),
        moves_max=_or(whole_of(sent, "moves_max"), usual.moves_max),
        exclude_groups=frozenset(_names(sent.get("exclude_groups", ""))),
        exclude_topics=frozenset(_names(sent.get("exclude_topics", ""))),
        pools=pools,
        racks_min=whole_of(sent, "racks_min") or 0,
        disk_used_max=_or(number_of(sent, "disk_used_max"), usual.disk_used_max),
    )


def _or(given: N | None, usual: N) -> N:
    """Return what a form says; 0 is something that it says, and not nothing."""
    return usual if given is None else given


def _names(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def moves_from(text: str) -> list[tuple[TopicPartition, str]]:
    """Return the moves of a form: one in a line, ``topic/partition group``.

    Raises:
        InvalidArgument: A line is something else.
    """
    found: dict[TopicPartition, str] = {}
    for line in text.split("\n"):
        if not line.strip():
            continue
        what, _, group = line.strip().partition(" ")
        topic, slash, number = what.rpartition("/")
        if (
            not slash
            or not group.strip()
            or not (number.isascii() and number.isdigit() and len(number) < 10)
        ):
            raise InvalidArgument(f"move {shown(line)} is not like topic/partition group")
        found[TopicPartition(topic, int(number))] = group.strip()
    return list(found.items())


# Plans ----------------------------------------------------------------------------------------
@post("/c/{cluster}/allocation/measure")
async def MEASURE(context: PageContext) -> Response:
    """Measure again."""
    if context.posted:
        await facts_of(context, _WINDOW_S)
    return context.go("allocation")


@post("/c/{cluster}/allocation/plan")
async def MAKE(context: PageContext) -> Response:
    """Make a plan: by the advisor, of moves by hand, or of a document; keep it, and show it."""
    try:
        return context.go("allocation", "plans", str(await _make(context)))
    except InvalidArgument as error:
        return await _board_page(context, str(error))


async def _make(context: PageContext) -> int:
    sent = context.form
    facts = await facts_of(context)
    wanted: list[tuple[TopicPartition, str]] | None = None
    source = ""
    if sent.get("how") == "hand":
        wanted = moves_from(text_in(sent, "moves", most=1_000_000))
        if not wanted:
            raise InvalidArgument("no partition was moved on the board")
    elif sent.get("how") == "import":
        text = text_in(sent, "document", most=2_000_000) or text_in(sent, "file", most=2_000_000)
        try:
            wanted = wanted_moves(json.loads(text))
        except (ValueError, RecursionError) as error:
            raise InvalidArgument(f"the document is not JSON: {error}") from None
        source = "import"
    goals = goals_from(sent) if sent.get("how") != "hand" else None
    plan = await context.run("plan_allocation", goals, wanted=wanted, source=source, facts=facts)
    plan = replace(plan, by=context.visitor.person.name or plan.by)
    name, person = context.site.name, context.visitor.person.name
    text = json.dumps(plan_to_json(plan))
    return await context.console.database.run(
        lambda connection: keep_plan(connection, name, plan.id, person, plan.made_ms, text)
    )


async def _read(context: PageContext) -> tuple[Any, AllocationPlan]:
    number = context.number("a plan")
    query = sqlalchemy.select(plans).where(
        plans.c.id == number, plans.c.cluster == context.site.name
    )
    row = await context.console.database.run(lambda each: each.execute(query).first())
    if row is None:
        raise InvalidArgument(f"there is no plan {number} of this cluster")
    return row, plan_from_json(json.loads(row.plan))


_MOVES: Final[list[Column[AllocatedMove]]] = [
    Column("what", N_("Partition"), lambda each: f"{each.topic}/{each.partition}"),
    Column("source", N_("From"), lambda each: each.source),
    Column("target", N_("To"), lambda each: each.target),
    Column("bytes_per_s", N_("Bytes in"), lambda each: each.bytes_per_s, Kind.RATE),
    Column("messages_per_s", N_("Messages in"), lambda each: each.messages_per_s, Kind.PER_S),
    Column("stored", N_("Stored"), lambda each: each.stored_bytes, Kind.BYTES),
    Column("goal", N_("Goal"), lambda each: each.goal),
    Column("reason", N_("Why"), lambda each: each.reason, sorts=False),
]


def _after(name: str, kind: Kind, title: str) -> list[Column[AllocatedGroup]]:
    return [
        Column(f"{name}_before", title, lambda each: getattr(each.before, name), kind),
        Column(f"{name}_after", N_("then"), lambda each: getattr(each.after, name), kind),
    ]


_GROUPS: Final[list[Column[AllocatedGroup]]] = [
    Column("group", N_("Broker group"), lambda each: each.group),
    Column("pool", N_("Pool"), lambda each: each.pool or COMMON_POOL),
    *_after("bytes_per_s", Kind.RATE, N_("Bytes in")),
    *_after("messages_per_s", Kind.PER_S, N_("Messages in")),
    *_after("stored_bytes", Kind.BYTES, N_("Stored")),
    *_after("partitions", Kind.COUNT, N_("Partitions")),
]


def scores(plan: AllocationPlan) -> list[tuple[GoalScore, GoalScore | None]]:
    """Return each score before the plan with the one after it."""
    after = {(each.goal, each.pool): each for each in plan.after}
    return [(each, after.get((each.goal, each.pool))) for each in plan.before]


@page("/c/{cluster}/allocation/plans/{number}")
async def PLAN(context: PageContext) -> Response:
    """Show a plan: moves, score before and after, what is broken, what changed since."""
    row, plan = await _read(context)
    runs = await context.run("list_allocations")
    run = next((each for each in runs if each.plan == plan.id), None)
    changes = []
    if row.state == "draft" and run is None and plan.has_work:
        changes = await context.run("allocation_changes", plan)
    moves = table(
        _MOVES,
        plan.moves,
        Asked.of(context.query, "m."),
        empty=N_("Nothing has to move."),
        searched=lambda each: f"{each.topic} {each.source} {each.target}",
    )
    kept = text_of(run) if run is not None else row.outcome  # the cluster knows better
    try:
        outcome = json.loads(kept) if kept else None
    except ValueError:  # it was cut
        outcome = kept
    return context.exported(moves, f"plan-{row.id}") or context.page(
        "allocation_plan.html",
        row=row,
        state=row.state if run is None else run.state,
        plan=plan,
        moves=moves,
        groups=table(_GROUPS, plan.groups, Asked.of(context.query, "g.")),
        scores=scores(plan),
        changes=changes,
        outcome=outcome,
        document=row.plan,
        command=f"vq balance apply {plan.id}.json --yes",
    )


@page("/c/{cluster}/allocation/plans/{number}/file")
async def FILE(context: PageContext) -> Response:
    """Return a plan as the file that ``vq balance apply`` takes."""
    row, plan = await _read(context)
    return Response(
        row.plan,
        media_type="application/json",
        headers={"Content-Disposition": f'attachment; filename="{plan.id}.json"'},
    )


@post("/c/{cluster}/allocation/plans/{number}/apply")
async def APPLY(context: PageContext) -> Response:
    """Carry a plan out, as a long act."""
    _, plan = await _read(context)
    confirm(context.form, plan.id)
    at_a_time = _or(whole_of(context.form, "at_a_time"), 1)
    pause_s = number_of(context.form, "pause_s") or 0.0
    changes = await context.run("allocation_changes", plan)
    if changes:
        raise InvalidArgument(
            f"plan {plan.id} rests on {len(changes)} thing(s) that have changed since it was made: "
            "look at the plan again, or make a new one"
        )
    job = await context.start(
        "apply_allocation",
        plan,
        at_a_time=at_a_time,
        pause_s=pause_s,
        on_end=_note_end(context, plan.id),
    )
    return context.go("jobs", str(job.number))


def _note_end(context: PageContext, plan: str | None) -> Callable[[LongAct], Awaitable[None]]:
    """Return what notes the outcome of carrying a plan out; None: the result names the plan."""
    site, database = context.site, context.console.database

    async def ended(job: LongAct) -> None:
        site.allocation = None  # what it says of places is not so any more
        name = plan or str(getattr(job.result, "plan", ""))
        state = "failed" if job.error else str(getattr(job.result, "state", "done"))
        outcome = text_of(job.error or job.result)
        await database.run(lambda each: note_outcome(each, site.name, name, state, outcome))

    return ended


@post("/c/{cluster}/allocation/run")
async def RUN(context: PageContext) -> Response:
    """End the plan that is carried out, or go on with one whose process is gone."""
    act, plan = context.form.get("act", ""), context.form.get("plan", "") or None
    context.site.allocation = None
    if act == "cancel":
        run = await context.run("cancel_allocation", plan)
        name = context.site.name
        await context.console.database.run(
            lambda each: note_outcome(each, name, run.plan, run.state, text_of(run))
        )
        context.say(N_("Plan %(plan)s: %(state)s"), plan=run.plan, state=run.state)
        return context.go("allocation")
    if act == "resume":
        job = await context.start("resume_allocation", plan, on_end=_note_end(context, plan))
        return context.go("jobs", str(job.number))
    raise InvalidArgument(f"{shown(act)} is no act on a plan")
