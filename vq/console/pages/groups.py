"""Consumer groups: lag with a verdict, members, owners; reset, delete, another strategy."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from starlette.responses import Response

from vq import limits
from vq.console.clusters.kept import KeptReset
from vq.console.clusters.lags import THRESHOLDS, SeenGroup
from vq.console.clusters.measured import LAG_BYTES, LAG_S
from vq.console.clusters.site import SiteFacts
from vq.console.pages.explain import why
from vq.console.pages.messages import moment_of
from vq.console.pages.page import form, page
from vq.console.web.context import PageContext
from vq.console.web.forms import checked_of, confirm, whole_of
from vq.console.web.languages import N_
from vq.console.web.owner_line import LANES_MAX, OwnerLine, owner_line
from vq.console.web.tables import Asked, Column, Kind, StateWord, TablePage, table
from vq.errors import InvalidArgument, InvalidState, PermissionRefused, VqError
from vq.model import TopicPartition
from vq.operations.cluster.bulk import GroupContract
from vq.operations.groups.balance import OwnerChange
from vq.operations.groups.groups import GroupDescription, GroupMember, GroupProgress
from vq.operations.groups.lag_rules import LagVerdict
from vq.operations.groups.resets import Goal, Target
from vq.operations.groups.shared import SharedProgress
from vq.shown import shown

_TONES: Final = {
    "ok": "ok",
    "unknown": "quiet",
    "warning": "warn",
    "stalled": "warn",
    "stopped": "bad",
}
#: What the causes of verdicts mean, and what to do.
CAUSES: Final = {
    "needs_reset": N_("The group was stopped here; only a reset lets it go on."),
    "other_topic": N_("The offset was committed for another topic of this name: reset it."),
    "beyond_end": N_("The committed offset lies beyond the end: messages were lost. Reset it."),
    "owner_error": N_("The member that has it reports an error and does not go on."),
    "placement": N_("Where the partition lives cannot be read."),
    "broker_silent": N_("A broker does not answer, so the lag is not known."),
    "no_members": N_("There are messages, and the group has no member. Start one."),
    "unmoved": N_("There are messages, and nothing was committed for a while."),
    "overtaken": N_("Messages were deleted before the group read them."),
    "no_owner": N_("No member has the partition, although the group has members."),
    "old": N_("The oldest message that is not handled is old. Add members, or make them faster."),
    "many_bytes": N_("Much is not handled."),
    "many_messages": N_("Many messages are not handled."),
    "not_measured": N_("A broker did not tell all that is asked for."),
    "not_readable": N_("The topic is closed for reading."),
    "not_subscribed": N_("No member of the group subscribes to the topic."),
    "broadcasting": N_("Each member reads all; their places are their own."),
    "topic_deleted": N_("A topic of the group is deleted."),
    "no_topics": N_("The group has read nothing yet."),
}


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group in the list; ``lag`` is what the last look found, None: it was not in it."""

    contract: GroupContract
    lag: SeenGroup | None

    @property
    def verdict(self) -> LagVerdict | None:
        """What is to be thought of it."""
        return None if self.lag is None else self.lag.verdict

    @property
    def state(self) -> StateWord:
        """The verdict for the list."""
        if self.contract.error:
            return StateWord(N_("unreadable"), "bad", self.contract.error)
        return state_of(self.verdict)


def state_of(verdict: LagVerdict | None) -> StateWord:
    """Return a verdict as a state."""
    if verdict is None:
        return StateWord(N_("not looked at yet"), "quiet")
    return StateWord(verdict.verdict, _TONES[verdict.verdict], CAUSES.get(verdict.cause or "", ""))


def rows_of(facts: SiteFacts) -> list[GroupRow]:
    """Return all groups."""
    return [GroupRow(each, facts.lags.get(each.group)) for each in facts.contracts]


@page("/c/{cluster}/groups")
async def GROUPS(context: PageContext) -> Response:
    """List groups with their lag."""
    columns: list[Column[GroupRow]] = [
        Column(
            "group",
            N_("Group"),
            lambda each: each.contract.group,
            link=lambda each: context.path("groups", each.contract.group),
        ),
        Column("verdict", N_("Verdict"), lambda each: each.state, Kind.STATE),
        Column("members", N_("Members"), lambda each: each.contract.members, Kind.COUNT),
        Column("lag_bytes", N_("Lag"), lambda each: each.lag and each.lag.lag_bytes, Kind.BYTES),
        Column(
            "lag_messages",
            N_("Messages behind"),
            lambda each: each.lag and each.lag.lag_messages,
            Kind.COUNT,
        ),
        Column(
            "lag_s", N_("Oldest unread"), lambda each: each.lag and each.lag.lag_s, Kind.DURATION
        ),
        Column(
            "topics",
            N_("Topics"),
            lambda each: list(each.contract.topics)[:5],
            Kind.LIST,
            sorts=False,
        ),
        Column("model", N_("Model"), lambda each: each.contract.model),
        Column("seen", N_("Looked at"), lambda each: each.lag and each.lag.time_ms, Kind.MOMENT),
    ]
    rows = rows_of(context.site.facts)
    found = table(
        columns,
        rows,
        Asked.of(context.query),
        empty=N_(
            "There is no consumer group yet. One is made when its first consumer starts: "
            "`vq consume TOPIC --group NAME`."
        ),
        searched=lambda each: f"{each.contract.group} {' '.join(each.contract.topics)}",
    )
    if not found.asked.export:
        context.site.want(each.contract.group for each in found.rows)
    return context.exported(found, "groups") or context.page(
        "groups.html",
        found=found,
        look=context.site.facts.lags_look,
        unseen=sum(each.lag is None for each in rows),
        live=True,
        command="vq group list",
    )


def _progress_columns(context: PageContext, group: GroupDescription) -> list[Column[GroupProgress]]:
    now_s = context.site.cluster.clock.wall_ms() / 1000

    def state(each: GroupProgress) -> StateWord:
        return state_of(group.verdict_on(each, THRESHOLDS, now_s=now_s))

    def explained(each: GroupProgress) -> str:
        place = {"topic": each.topic, "partition": each.partition}
        return why(context, "partition", **place, group=group.group)

    return [
        Column(
            "topic",
            N_("Topic"),
            lambda each: each.topic,
            link=lambda each: context.path("topics", each.topic),
        ),
        Column("partition", N_("Partition"), lambda each: each.partition, Kind.COUNT),
        Column("verdict", N_("Verdict"), state, Kind.STATE, link=explained),
        Column("owner", N_("Member"), lambda each: each.owner or ""),
        Column("lag_bytes", N_("Lag"), lambda each: each.lag_bytes, Kind.BYTES),
        Column("lag_messages", N_("Messages behind"), lambda each: each.lag_messages, Kind.COUNT),
        Column("lag_s", N_("Oldest unread"), lambda each: each.lag_s, Kind.DURATION),
        Column("committed", N_("Committed"), lambda each: each.committed, Kind.COUNT),
        Column("end", N_("End offset"), lambda each: each.end, Kind.COUNT),
        Column("committed_at", N_("Committed at"), lambda each: each.committed_ms, Kind.MOMENT),
        Column("stopped", N_("What stops it"), lambda each: each.stopped or ""),
    ]


_MEMBERS: Final[list[Column[GroupMember]]] = [
    Column("member", N_("Member"), lambda each: each.member, Kind.CODE),
    Column("host", N_("Host"), lambda each: each.host),
    Column("pid", N_("Process"), lambda each: str(each.pid)),
    Column("partitions", N_("Partitions"), lambda each: each.partitions, Kind.COUNT),
    Column("topics", N_("Topics"), lambda each: list(each.topics), Kind.LIST, sorts=False),
    Column("since", N_("Since"), lambda each: each.since_ms, Kind.MOMENT),
]


_REASONS: Final[Mapping[str, str]] = {
    "first": N_("nobody had it"),
    "balance": N_("the shares changed"),
    "left": N_("its member left"),
    "again": N_("claimed anew"),
    "reset": N_("the group was reset"),
}
_CLAIMS: Final[list[Column[OwnerChange]]] = [
    Column("time", N_("Time"), lambda each: each.time_ms, Kind.MOMENT),
    Column("partition", N_("Partition"), lambda each: f"{each.topic}/{each.partition}"),
    Column("before", N_("Before"), lambda each: each.before or "", Kind.CODE),
    Column("member", N_("Member"), lambda each: each.member, Kind.CODE),
    Column(
        "reason",
        N_("Why"),
        lambda each: StateWord(_REASONS.get(each.reason, each.reason)),
        Kind.STATE,
    ),
]
#: How far back the time line goes, in hours.
_BACKS: Final = (
    ("", N_("all")),
    ("168", N_("7 days")),
    ("24", N_("24 hours")),
    ("1", N_("1 hour")),
)


def _line(
    context: PageContext, group: GroupDescription, history: Sequence[OwnerChange]
) -> tuple[TablePage[TopicPartition], OwnerLine]:
    """Return the partitions of the page that is asked for, and their time line."""
    owners = {TopicPartition(each.topic, each.partition): each.owner for each in group.partitions}
    places = {TopicPartition(each.topic, each.partition) for each in history}
    asked = replace(Asked.of(context.query, "o."), size=LANES_MAX, export="")
    drawn = table([], sorted(places), asked)
    hours = dict(_BACKS).keys() & {context.query.get("back", "")}
    back = int(next(iter(hours)) or 0) if hours else 0
    return drawn, owner_line(
        drawn.rows,
        history,
        owners,
        now_ms=context.site.cluster.clock.wall_ms(),
        back_ms=back * 3_600_000 or None,
    )


@page("/c/{cluster}/groups/{group}")
async def GROUP(context: PageContext) -> Response:
    """Show a group."""
    name = context.param("group")
    group: GroupDescription = await context.run("describe_group", name)
    progress = table(
        _progress_columns(context, group),
        group.partitions,
        Asked.of(context.query, "p."),
        empty=N_("The group has read nothing yet."),
        searched=lambda each: f"{each.topic}/{each.partition} {each.owner or ''}",
    )
    history: list[OwnerChange] = await context.run("group_history", name)
    claims = table(
        _CLAIMS,
        history[::-1],
        Asked.of(context.query, "h."),
        empty=N_("No partition has changed hands yet."),
        searched=lambda each: f"{each.topic}/{each.partition} {each.member} {each.before or ''}",
    )
    drawn, line = _line(context, group, history)
    verdict = group.worst_verdict(THRESHOLDS, now_s=context.site.cluster.clock.wall_ms() / 1000)
    return context.exported(progress, f"{name}-lag") or context.page(
        "group.html",
        group=group,
        progress=progress,
        members=table(
            _MEMBERS, group.members, Asked(), empty=N_("No member is alive. Start a consumer.")
        ),
        verdict=state_of(verdict),
        claims=claims,
        drawn=drawn,
        line=line,
        backs=_BACKS,
        back=context.query.get("back", ""),
        lag_series=[f"{LAG_BYTES} {name}"],
        age_series=[f"{LAG_S} {name}"],
        live=True,
        command=f"vq group describe {name}",
    )


@dataclass(frozen=True, slots=True)
class SharedRow:
    """A partition of a shared group; ``lag_s`` is the age of its lowest open message."""

    told: SharedProgress
    lag_s: float | None


_GOALS: Final = (
    (Goal.EARLIEST.value, N_("the oldest message that is kept")),
    (Goal.LATEST.value, N_("the end: skip all that is there")),
    (Goal.TIME.value, N_("the first message stored at a time or later")),
    (Goal.SHIFT.value, N_("so many messages on, or back with a minus")),
    (Goal.OFFSET.value, N_("an offset")),
    (Goal.COMMITTED.value, N_("where it is; lets a stopped group go on")),
    (Goal.PAST_DAMAGE.value, N_("behind the damage at which it stands")),
)


@form("/c/{cluster}/groups/{group}/reset")
async def RESET(context: PageContext) -> Response:
    """Plan where a group goes on, show it, and do it."""
    name, sent = context.param("group"), context.form
    kept: KeptReset | None = None
    problem, asked = "", _question(sent)
    group: GroupDescription = await context.run("describe_group", name, count=False)
    if context.posted:
        try:
            does = sent.get("step") == "do"
            if does:
                kept = context.site.resets.find(sent.get("planned", ""))
            is_shown = kept is not None and (kept.group, kept.question) == (name, asked)
            if kept is None or not is_shown:
                kept = await _planned_reset(context, name, asked)
            if does:
                if not is_shown:
                    raise InvalidArgument(context.text(_OTHER_PLAN))
                confirm(sent, name)
                plan = kept.plan  # not one of now: that may skip what nobody was shown
                await context.run("reset", name, plan, fence=checked_of(sent, "fence"), before=plan)
                context.say(
                    N_("Reset: %(group)s goes on elsewhere in %(count)s partitions"),
                    group=name,
                    count=len(plan),
                )
                return context.go("groups", name)
        except InvalidArgument as error:
            problem = str(error)
    return context.page(
        "group_reset.html",
        400 if problem else 200,
        name=name,
        group=group,
        goals=_GOALS,
        sent=sent,
        plan=None if kept is None else kept.plan,
        planned="" if kept is None else kept.number,
        problem=problem,
        command=_reset_command(name, sent),
    )


async def _planned_reset(context: PageContext, name: str, asked: Sequence[str]) -> KeptReset:
    """Make the plan that a form asks for, and keep it until it is carried out as it was shown."""
    sent, resets = context.form, context.site.resets
    partition = whole_of(sent, "partition")
    plan = await context.run(
        "plan_reset",
        name,
        _target(sent.get("goal", ""), sent.get("value", "")),
        only_topics=[each for each in sent.get("topics", "").split("\n") if each],
        only_partitions=() if partition is None else (partition,),
        only_stopped=checked_of(sent, "only_stopped"),
    )
    kept = KeptReset(resets.next_number(), name, asked, plan)
    resets.keep(kept)
    return kept


#: What a plan answers: one that was shown is carried out, no other.
_QUESTION: Final = ("goal", "value", "topics", "partition", "only_stopped")
_OTHER_PLAN: Final = N_(
    "The form was changed after the plan was shown. This is the plan of what it says now: "
    "confirm it, or change the form again."
)
_OPTIONS: Final[Mapping[str, str]] = {
    Goal.TIME: "--to-time",
    Goal.SHIFT: "--shift",
    Goal.OFFSET: "--offset",
    Goal.PAST_DAMAGE: "--past-damage",
}


def _question(sent: Mapping[str, str]) -> list[str]:
    return [sent.get(each, "").strip() for each in _QUESTION]


def _reset_command(group: str, sent: Mapping[str, str]) -> str:
    goal, value = sent.get("goal") or Goal.EARLIEST, sent.get("value", "").strip()
    words = ["vq", "group", "reset", group, _OPTIONS.get(goal, f"--to-{goal}")]
    if goal in (Goal.TIME, Goal.SHIFT, Goal.OFFSET):
        words.append(value or {Goal.TIME: "15m"}.get(Goal(goal), "100"))
    for topic in sent.get("topics", "").split():
        words += ["--topic", topic]
    if sent.get("partition", "").strip():
        words += ["--partition", sent["partition"].strip()]
    return shlex.join(words + (["--stopped"] if sent.get("only_stopped") else []))


def _target(goal: str, value: str) -> Target:
    if goal == Goal.TIME:
        return Target(goal=Goal.TIME, value=moment_of(value))
    if goal in (Goal.OFFSET, Goal.SHIFT):
        number = whole_of({goal: value}, goal)
        if number is None:
            raise InvalidArgument(f"{goal} needs a number")
        return Target(goal=Goal(goal), value=number)
    if goal not in list(Goal):
        raise InvalidArgument(f"{shown(goal)} is no place to go on; take one of {', '.join(Goal)}")
    return Target(goal=Goal(goal))


@form("/c/{cluster}/groups/{group}/delete")
async def DELETE(context: PageContext) -> Response:
    """Show what deleting a group takes away, and do it; or make it forget a topic."""
    name = context.param("group")
    topic = context.form.get("topic") or context.query.get("topic", "")
    what = topic or name
    operation = "forget_topic" if topic else "delete_group"
    arguments = (name, topic) if topic else (name,)
    plan = await context.run(f"plan_{operation}", *arguments)
    if context.posted:
        confirm(context.form, what)
        await context.run(operation, *arguments, before=plan)
        context.say(N_("Deleted: %(what)s"), what=what)
        return context.go("groups", name) if topic else context.go("groups")
    return context.page(
        "group_delete.html",
        plan=plan,
        name=name,
        topic=topic,
        what=what,
        command=f"vq group forget {name} --topic {topic}" if topic else f"vq group delete {name}",
    )


_SHARED: Final[list[Column[SharedRow]]] = [
    Column("topic", N_("Topic"), lambda each: each.told.topic),
    Column("partition", N_("Partition"), lambda each: each.told.partition, Kind.COUNT),
    Column("open", N_("Open"), lambda each: each.told.open, Kind.COUNT),
    Column("held", N_("Leased"), lambda each: each.told.held, Kind.COUNT),
    Column("waiting", N_("Due later"), lambda each: each.told.waiting, Kind.COUNT),
    Column("due", N_("Due now"), lambda each: each.told.due, Kind.COUNT),
    Column("redelivered", N_("Delivered again"), lambda each: each.told.redelivered, Kind.COUNT),
    Column(
        "deliveries_max", N_("Most deliveries"), lambda each: each.told.deliveries_max, Kind.COUNT
    ),
    Column("low", N_("Lowest open"), lambda each: each.told.low, Kind.COUNT),
    Column("cursor", N_("Next new"), lambda each: each.told.cursor, Kind.COUNT),
    Column("done", N_("Done"), lambda each: each.told.cursor - each.told.open, Kind.COUNT),
    Column("oldest", N_("Oldest unread"), lambda each: each.lag_s, Kind.DURATION),
]


@page("/c/{cluster}/groups/{group}/shared")
async def SHARED(context: PageContext) -> Response:
    """Show what is open of a shared group."""
    name = context.param("group")
    group: GroupDescription = await context.run("describe_group", name)
    told, silent = None, ""
    try:
        told = await context.run("describe_shared_group", name)
    except (InvalidState, PermissionRefused):
        raise
    except VqError as error:  # the group is there, and who leads its journal does not answer
        silent = str(error)
    lags = {(each.topic, each.partition): each.lag_s for each in group.partitions}
    rows = [
        SharedRow(each, lags.get((each.topic, each.partition)))
        for each in (() if told is None else told.partitions)
    ]
    found = table(
        _SHARED,
        rows,
        Asked.of(context.query),
        empty=N_("Nothing was delivered yet."),
        searched=lambda each: f"{each.told.topic}/{each.told.partition}",
    )
    return context.exported(found, f"{name}-shared") or context.page(
        "group_shared.html",
        group=group,
        told=told,
        silent=silent,
        found=found,
        sums={
            each: sum(getattr(row.told, each) for row in rows)
            for each in ("open", "held", "waiting", "redelivered")
        },
        open_max=limits.SHARED_OPEN_MAX,
        group_open_max=limits.SHARED_GROUP_OPEN_MAX,
        live=True,
        command=f"vq group shared {name}",
    )


@page("/c/{cluster}/groups/{group}/plan")
async def PLAN(context: PageContext) -> Response:
    """Show how another strategy, or other members, would share out the partitions."""
    name = context.param("group")
    strategy = context.query.get("strategy") or None
    members = whole_of(context.query, "members")
    asked = strategy is not None or members is not None
    problem, plan = "", None
    try:
        plan = await context.run("plan_balance", name, strategy=strategy, members=members)
    except InvalidArgument as error:
        problem = str(error)
    return context.page(
        "group_plan.html",
        400 if problem and asked else 200,
        name=name,
        plan=plan,
        problem=problem,
        strategy=strategy or "",
        members_asked="" if members is None else members,
        command=f"vq group plan {name}" + (f" --strategy {strategy}" if strategy else ""),
    )
