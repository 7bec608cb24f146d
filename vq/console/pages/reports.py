"""Reports of Spark on lag, capacity and contents: made as long acts, and read."""

import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from starlette.responses import Response

from vq.console.accounts.accounts import AccountRole, now_ms
from vq.console.acts.door import LongAct
from vq.console.acts.reports import ReportKind, report_needs
from vq.console.clusters.history import export_samples
from vq.console.clusters.kept import KeptReport
from vq.console.clusters.measured import DISK_USED
from vq.console.pages.page import form, page
from vq.console.web.context import PageContext
from vq.console.web.languages import N_
from vq.console.web.tables import Asked, Column, Kind, StateWord, TablePage, table
from vq.errors import InvalidArgument, InvalidState
from vq.shown import shown

_ACT: Final = "run_report"
_TITLES: Final[Mapping[str, str]] = {
    ReportKind.LAG: N_("Lag of all groups"),
    ReportKind.CAPACITY: N_("Capacity: what grows, and which disk is full when"),
    ReportKind.AUDIT: N_("Audit of all stored contents"),
}
#: By the words of ``vq report``.
_TONES: Final[Mapping[str, str]] = {
    **dict.fromkeys((N_("ok"), N_("normal"), N_("sound"), N_("idle"), N_("steady")), "ok"),
    **dict.fromkeys((N_("warning"), N_("hot"), N_("unknown"), N_("may fill")), "warn"),
    **dict.fromkeys((N_("stalled"), N_("stopped"), N_("full"), N_("fills"), N_("bad")), "bad"),
}
_Columns = Sequence[tuple[str, str, Kind]]


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A table of a report.

    Attributes:
        path: To its rows in the report, by names with dots.
        title: In English.
        columns: Name in a row, title, kind.
        empty: What is said if there is no row.
    """

    path: str
    title: str
    columns: _Columns
    empty: str = N_("There is none.")


_GROUP = ("group", N_("Group"), Kind.TEXT)
_TOPIC = ("topic", N_("Topic"), Kind.TEXT)
_PARTITION = ("partition", N_("Partition"), Kind.COUNT)
_VERDICT = ("verdict", N_("Verdict"), Kind.STATE)
_LAGS = (
    ("lag_bytes", N_("Lag in bytes"), Kind.BYTES),
    ("lag_messages", N_("Lag in messages"), Kind.COUNT),
    ("lag_s", N_("Lag in time"), Kind.DURATION),
)
_STORED = (
    ("bytes", N_("Stored"), Kind.BYTES),
    ("messages", N_("Messages"), Kind.COUNT),
    ("bytes_per_day", N_("Bytes a day"), Kind.BYTES),
    ("messages_per_day", N_("Messages a day"), Kind.COUNT),
)
_ROLLED = (
    ("name", N_("Name"), Kind.TEXT),
    ("partitions", N_("Partitions"), Kind.COUNT),
    ("stopped", N_("Stopped"), Kind.COUNT),
    ("stalled", N_("Stalled"), Kind.COUNT),
    ("warning", N_("Warning"), Kind.COUNT),
    ("unknown", N_("Unknown"), Kind.COUNT),
    *_LAGS,
)
TABLES: Final[Mapping[str, Sequence[ReportTable]]] = {
    ReportKind.LAG: (
        ReportTable("rollups.group", N_("By group"), _ROLLED),
        ReportTable("rollups.topic", N_("By topic"), _ROLLED),
        ReportTable(
            "offenders",
            N_("Worst partitions"),
            (
                _VERDICT,
                _GROUP,
                _TOPIC,
                _PARTITION,
                ("owner", N_("Owner"), Kind.TEXT),
                *_LAGS,
                ("trend", N_("Trend"), Kind.TEXT),
                ("cause", N_("Cause"), Kind.TEXT),
            ),
            N_("No partition is behind."),
        ),
    ),
    ReportKind.CAPACITY: (
        ReportTable(
            "disks",
            N_("Disks"),
            (
                _VERDICT,
                _GROUP,
                ("node", N_("Node"), Kind.TEXT),
                ("directory", N_("Directory"), Kind.CODE),
                ("bytes_used", N_("Used"), Kind.BYTES),
                ("bytes_total", N_("Size"), Kind.BYTES),
                ("growth_bytes_per_day", N_("Bytes a day"), Kind.BYTES),
                ("full_in_days", N_("Full in days"), Kind.COUNT),
                ("reason", N_("Why"), Kind.TEXT),
            ),
        ),
        ReportTable(
            "topics",
            N_("Topics"),
            (_TOPIC, ("partitions", N_("Partitions"), Kind.COUNT), *_STORED),
        ),
        ReportTable(
            "partitions",
            N_("Partitions"),
            (_VERDICT, _TOPIC, _PARTITION, _GROUP, *_STORED, ("reason", N_("Why"), Kind.TEXT)),
        ),
        ReportTable(
            "what_ifs",
            N_("What frees space"),
            (
                _TOPIC,
                ("action", N_("Act"), Kind.TEXT),
                ("hours", N_("Hours"), Kind.COUNT),
                _GROUP,
                ("bytes_freed", N_("Freed"), Kind.BYTES),
            ),
        ),
        ReportTable(
            "plan.moves",
            N_("Proposed moves"),
            (
                _TOPIC,
                _PARTITION,
                ("from", N_("From"), Kind.TEXT),
                ("to", N_("To"), Kind.TEXT),
                ("bytes_per_day", N_("Bytes a day"), Kind.BYTES),
                ("reason", N_("Why"), Kind.TEXT),
            ),
            N_("No move would even out the load."),
        ),
    ),
    ReportKind.AUDIT: (
        ReportTable(
            "findings",
            N_("Findings"),
            (
                ("kind", N_("Kind"), Kind.CODE),
                _TOPIC,
                _PARTITION,
                ("start", N_("From offset"), Kind.COUNT),
                ("end", N_("To offset"), Kind.COUNT),
                ("node", N_("Node"), Kind.TEXT),
                ("detail", N_("Why"), Kind.TEXT),
            ),
            N_("Nothing is wrong in what was read."),
        ),
        ReportTable(
            "partitions",
            N_("Partitions"),
            (
                _VERDICT,
                _TOPIC,
                _PARTITION,
                ("bytes", N_("Stored"), Kind.BYTES),
                ("messages", N_("Messages"), Kind.COUNT),
                ("findings", N_("Findings"), Kind.COUNT),
            ),
        ),
    ),
}


def _running(context: PageContext) -> LongAct | None:
    jobs = context.console.door.jobs.values()
    here = (each for each in jobs if each.cluster == context.site.name and each.act == _ACT)
    return next((each for each in here if each.ended_ms is None), None)


@form("/c/{cluster}/reports", AccountRole.VIEWER)
async def REPORTS(context: PageContext) -> Response:
    """List the last reports, and have one made."""
    running, missing = _running(context), report_needs()
    if context.posted:
        context.console.door.check(context.visitor.person, _ACT)
        kind = context.form.get("report", "")
        if kind not in list(ReportKind):
            raise InvalidArgument(
                f"{shown(kind)} is no report; take one of {', '.join(ReportKind)}"
            )
        if missing:
            raise InvalidState(f"Spark is not installed where the console runs: {missing}")
        if running is not None:
            raise InvalidState(
                f"act {running.number} makes a report of this cluster now: wait for its end"
            )
        kept = context.console.config.reports
        out = f"{kept.rstrip('/')}/{context.site.name}/{kind}" if kept else None
        measured = await _measured(context) if kind == ReportKind.CAPACITY else None
        try:
            job = await context.start(
                _ACT,
                ReportKind(kind),
                out=out,
                measured=None if measured is None else str(measured),
                on_end=_keeper(context, measured),
            )
        except BaseException:
            _drop(measured)
            raise
        return context.go("jobs", str(job.number))
    columns: list[Column[KeptReport]] = [
        Column(
            "number",
            N_("Number"),
            lambda each: str(each.number),
            link=lambda each: context.path("reports", str(each.number)),
        ),
        Column("report", N_("Report"), lambda each: each.kind, Kind.CODE),
        Column("made", N_("Made"), lambda each: each.made_ms, Kind.MOMENT),
        Column("person", N_("Person"), lambda each: each.person),
        Column("size", N_("Size"), lambda each: len(each.text), Kind.BYTES),
    ]
    found = table(
        columns,
        context.site.reports.all(),
        Asked.of(context.query),
        empty=N_("No report was made since the console started.")
        if missing
        else N_("No report was made since the console started. Choose one above."),
    )
    return context.exported(found, "reports") or context.page(
        "reports.html",
        found=found,
        kinds=_TITLES,
        missing=missing,
        running=running,
        live=True,
        command="vq report lag",
    )


async def _measured(context: PageContext) -> Path:
    """Write how full disks were, as the console has measured it, into a file of its own.

    The process of a report gets no password of the console's database.
    """
    handle, name = tempfile.mkstemp(prefix="vq-console-", suffix=".jsonl")
    os.close(handle)
    cluster, file = context.site.name, Path(name)
    try:
        await context.console.database.run(
            lambda connection: export_samples(connection, cluster, file, begin=f"{DISK_USED} ")
        )
    except BaseException:
        _drop(file)
        raise
    return file


def _drop(file: Path | None) -> None:
    if file is not None:
        file.unlink(missing_ok=True)


def _keeper(context: PageContext, measured: Path | None) -> Any:
    site = context.site

    async def keep(job: LongAct) -> None:
        _drop(measured)
        if job.result is None:
            return
        text = json.dumps(job.result, ensure_ascii=False, separators=(",", ":"))
        site.reports.keep(KeptReport(job.number, job.subject, job.person, now_ms(), text))
        job.result = {"report": job.number}  # the shelf has it, and forgets it in time

    return keep


@page("/c/{cluster}/reports/{number}")
async def REPORT(context: PageContext) -> Response:
    """Show one."""
    kept = _kept(context)
    report = kept.read()
    tables: list[tuple[str, TablePage[Any]]] = []
    for number, each in enumerate(TABLES[kept.kind]):
        prefix = f"t{number}."
        found = table(
            [
                Column(name, title, _cell(name, kind), kind, link=_link(context, name))
                for name, title, kind in each.columns
            ],
            _rows(report, each.path),
            Asked.of(context.query, prefix),
            empty=each.empty,
        )
        name = f"{kept.kind}-{kept.number}-{each.path.replace('.', '-')}"
        file = context.exported(found, name)
        if file is not None:
            return file
        tables.append((each.title, found))
    plan = report.get("plan")
    proposed = plan if isinstance(plan, dict) else {}
    return context.page(
        "report.html",
        kept=kept,
        title=_TITLES[kept.kind],
        report=report,
        tables=tables,
        notes=[*(report.get("notes") or ()), *(proposed.get("notes") or ())],
        plan=json.dumps(proposed) if proposed.get("moves") else "",
        silent=_silent(report.get("silent")),
        command=f"vq report {kept.kind}",
    )


@page("/c/{cluster}/reports/{number}/file")
async def REPORT_FILE(context: PageContext) -> Response:
    """Return one as the command prints it."""
    kept = _kept(context)
    name = f"{kept.kind}-{kept.number}.json"
    return Response(
        kept.text,
        media_type="application/json",
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


def _kept(context: PageContext) -> KeptReport:
    number = context.param("number")
    found = context.site.reports.find(number)
    if found is None:
        raise InvalidArgument(
            f"report {shown(number)} is not kept: the console has the last ones since its start"
        )
    return found


def _rows(report: Mapping[str, Any], path: str) -> list[Mapping[str, Any]]:
    found: Any = report
    for part in path.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return [each for each in found or () if isinstance(each, Mapping)]


def _cell(name: str, kind: Kind) -> Callable[[Mapping[str, Any]], Any]:
    def value(row: Mapping[str, Any]) -> Any:
        found = row.get(name)
        if kind is Kind.STATE:
            return StateWord(str(found), _TONES.get(str(found), "quiet"))
        return found

    return value


def _link(context: PageContext, name: str) -> Callable[[Mapping[str, Any]], str | None] | None:
    if name != "topic":
        return None

    def link(row: Mapping[str, Any]) -> str | None:
        return context.path("topics", str(row["topic"])) if row.get("topic") else None

    return link


def _silent(found: Any) -> list[str]:
    """Return what did not answer, of either form that reports have."""
    if isinstance(found, Mapping):
        return [f"{name}: {why}" for name, why in sorted(found.items())]
    return [" ".join(str(part) for part in each.values()) for each in found or ()]
