"""Acts that go on: how far they are, and what came of them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from starlette.responses import Response

from vq.console.acts.door import LongAct, text_of
from vq.console.pages.archive import RESTORED, VERIFIED
from vq.console.pages.definitions import step_columns
from vq.console.pages.page import page
from vq.console.web.context import PageContext
from vq.console.web.languages import N_
from vq.console.web.tables import Asked, Column, Kind, StateWord, table
from vq.errors import InvalidArgument
from vq.shown import shown

#: The columns of what acts return that have a row for each thing.
_RESULTS: Final[Mapping[str, Callable[[PageContext], list[Column[Any]]]]] = {
    "verify_archives": lambda _: VERIFIED,
    "restore_archives": lambda _: RESTORED,
    "import_definitions": lambda context: step_columns(context, taken=True),
}


def _state(job: LongAct) -> StateWord:
    if job.ended_ms is None:
        return StateWord(N_("goes on"), "warn")
    return StateWord(N_("failed"), "bad", job.error) if job.error else StateWord(N_("done"), "ok")


@page("/c/{cluster}/jobs")
async def JOBS(context: PageContext) -> Response:
    """List the long acts of this console since its start."""
    columns: list[Column[LongAct]] = [
        Column(
            "number",
            N_("Number"),
            lambda each: str(each.number),
            link=lambda each: context.path("jobs", str(each.number)),
        ),
        Column("act", N_("Act"), lambda each: each.act, Kind.CODE),
        Column("subject", N_("To what"), lambda each: each.subject),
        Column("state", N_("State"), _state, Kind.STATE),
        Column("person", N_("Person"), lambda each: each.person),
        Column("begun", N_("Begun"), lambda each: each.begun_ms, Kind.MOMENT),
        Column("ended", N_("Ended"), lambda each: each.ended_ms or "", Kind.TEXT),
    ]
    own = [each for each in context.console.door.jobs.values() if each.cluster == context.site.name]
    found = table(columns[:-1], own[::-1], Asked.of(context.query), empty=N_("There was none yet."))
    return context.page("jobs.html", found=found, live=True)


@page("/c/{cluster}/jobs/{number}")
async def JOB(context: PageContext) -> Response:
    """Show one."""
    number = context.param("number")
    job = (
        context.console.door.jobs.get(int(number))
        if number.isdigit() and number.isascii() and len(number) < 19
        else None
    )
    if job is None or job.cluster != context.site.name:
        raise InvalidArgument(
            f"this console knows no act {shown(number)}: it remembers those since its start, "
            "the audit has all"
        )
    results = None
    if job.act in _RESULTS and isinstance(job.result, list):
        results = table(
            _RESULTS[job.act](context),
            job.result,
            Asked.of(context.query, "o."),
            empty=N_("There was nothing to do."),
        )
        if file := context.exported(results, f"act-{job.number}"):
            return file
    steps = _steps(job.progress)
    return context.page(
        "job.html",
        job=job,
        state=_state(job),
        steps=steps,
        progress="" if steps else _told(job.progress),
        results=results,
        result="" if results else _told(job.result),
        place=_place(context, job),
        live=job.ended_ms is None,
    )


#: Pages of what long acts act on, below the cluster; ``{}``: the name of it.
_PLACES: Final[Mapping[str, Sequence[str]]] = {
    "apply_allocation": ("allocation",),
    "resume_allocation": ("allocation",),
    "resend_dead_letters": ("dead-letters", "{}"),
    "drain_topic": ("topics", "{}"),
}


def _place(context: PageContext, job: LongAct) -> str:
    parts = _PLACES.get(job.act, ())
    return context.path(*(each.format(job.subject) for each in parts)) if parts else ""


def _steps(progress: Any) -> tuple[int, int] | None:
    """Return how many steps of how many are done, if progress is told so."""
    if hasattr(progress, "done") and hasattr(progress, "total"):
        progress = (progress.done, progress.total)
    match progress:
        case (int() as done, int() as total) if 0 <= done <= total and total:
            return done, total
    return None


def _told(value: Any) -> str:
    return "" if value is None else text_of(value)
