"""``make bench``: every speed target, the baseline in turns, and a comparison with other systems.

    python -m bench.run [--quick] [--only NAME ...] [--rounds N] [--json FILE] [--directory DIR]

Figures are medians over the rounds. A missed target is reported with a profile of both sides. The
exit code is 1 only if a measurement fails (a message was lost, duplicated or refused).
"""

import argparse
import dataclasses
import functools
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    # As a script, this file's directory comes first on the path; its modules are not top-level.
    sys.path[:] = [str(ROOT), *(p for p in sys.path if Path(p or ".").resolve() != ROOT / "bench")]

from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from bench import baseline, compare, guard, profile, replicated  # noqa: E402
from bench.context import Context  # noqa: E402
from bench.figures import COLUMNS, Row, Verdict, cells, markdown_table, rows_of, shown  # noqa: E402
from bench.scenarios import SCENARIOS, Scenario  # noqa: E402
from vq.client.producer.intake import appender  # noqa: E402
from vq.errors import VqError  # noqa: E402

PEERS = "peers"
REPLICATED = "replicated_peers"
GUARD = "guard"  # runs only if it is named
#: From this share on, the run reports that other programs use the machine.
_BUSY_SHARE = 0.1
NAMES = (*(scenario.name for scenario in SCENARIOS), PEERS, REPLICATED)


def machine(directory: Path) -> dict[str, Any]:
    """Return the properties of the machine that affect the figures."""
    processor = next(
        (
            line.partition(":")[2].strip()
            for line in _lines("/proc/cpuinfo")
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    memory_kb = next(
        (int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0
    )
    return {
        "processor": processor,
        "cores": os.cpu_count(),
        "memory_gb": round(memory_kb * 1024 / 1e9, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "file_system": _file_system(directory),
        "client_loops": "compiled" if appender.LOOPS_COMPILED else "in Python",
        "load_average": [round(each, 2) for each in os.getloadavg()],
    }


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def _file_system(directory: Path) -> str:
    """Return the type of the file system that holds ``directory``."""
    best, kind = "", "unknown"
    real = str(directory.resolve())
    for line in _lines("/proc/mounts"):
        _, point, found, *_ = line.split()
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, found
    return kind


def busy_share(seconds: float = 1.0) -> float:
    """Return the share of all cores that other programs use, while the benchmark sleeps."""

    def read() -> tuple[int, int]:
        values = [int(each) for each in _lines("/proc/stat")[0].split()[1:9]]
        return sum(values), values[3] + values[4]  # idle and waiting for the disk

    before_all, before_idle = read()
    time.sleep(seconds)
    after_all, after_idle = read()
    return 1 - (after_idle - before_idle) / max(1, after_all - before_all)


class Report:
    """Collects rows and prints them."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.rows: list[Row] = []
        self.failures: dict[str, str] = {}
        self.profiles: dict[str, str] = {}
        self.guard: dict[str, Any] = {}
        self.busy: dict[str, float] = {}  # share of the cores others used before each scenario

    def scenario(self, title: str, rows: Sequence[Row]) -> None:
        """Print the table of one scenario."""
        self.rows += rows
        table = Table(title=title, title_justify="left", title_style="bold")
        for column in COLUMNS:
            table.add_column(
                column, justify="left" if column in {"scenario", "target"} else "right"
            )
        for row in rows:
            table.add_row(*cells(row))
        self.console.print(table)

    def as_json(self) -> dict[str, Any]:
        """Return all results so far."""
        return {
            "load_average_after": [round(each, 2) for each in os.getloadavg()],
            "rows": [row.as_json() for row in self.rows],
            "busy_before": self.busy,
            "failures": self.failures,
            "profiles": self.profiles,
            "guard": self.guard,
        }

    def missed(self) -> list[Row]:
        """Return the rows that missed their target."""
        return [row for row in self.rows if row.verdict is Verdict.MISSED]


def run_scenario(scenario: Scenario, context: Context, report: Report, *, profiles: bool) -> None:
    """Run one scenario and report it, with profiles of missed targets."""
    context.say(f"{scenario.name}: {scenario.about}")
    figures = []
    for number, round_ in enumerate(scenario.run(context), start=1):
        figures += round_
        context.say(f"  round {number}: " + ", ".join(_brief(figure) for figure in round_))
    rows = rows_of(scenario.name, figures, scenario.targets)
    report.scenario(scenario.about, rows)
    missed = [row for row in rows if row.verdict is Verdict.MISSED]
    works = profile.works_of(row.name for row in missed)
    for work in works if profiles else ():
        context.say(f"  a target was missed, running again under the sampler: {work}")
        text = profile.profile(work, context)
        report.profiles[work] = text
        report.console.print(text, highlight=False, markup=False)


def _brief(figure: Any) -> str:
    return f"{figure.name} {shown(figure.value)} {figure.unit}"


def run_peers(context: Context, report: Report) -> None:
    """Run the comparison and report it."""
    for _, found in compare.look_for_peers():
        context.say(f"peers: {found.name}: {found.missing or 'found, ' + found.version}")
    figures = []
    for round_ in compare.compare(context):
        figures += round_
        context.say("  round: " + ", ".join(_brief(figure) for figure in round_))
    rows = rows_of(PEERS, figures, {})
    report.rows += rows
    table = Table(title="the same work, messages a second", title_justify="left")
    for column in compare.COLUMNS:
        table.add_column(column, justify="right" if column in compare.WAYS else "left")
    for line in compare.lines(rows):
        table.add_row(*line)
    report.console.print(table)


def run_replicated_peers(context: Context, report: Report) -> None:
    """Run the comparison of systems of three nodes and report it."""
    for _, about in replicated.look_for_peers():
        found = about.missing or f"found, {about.version}"
        context.say(f"{REPLICATED}: {about.name}: {found}")
    figures = [figure for round_ in replicated.compare(context) for figure in round_]
    rows = rows_of(REPLICATED, figures, {})
    report.rows += rows
    for title, columns, lines in (
        ("three nodes, messages a second", replicated.RATE_COLUMNS, replicated.rate_lines(rows)),
        ("kill -9 of the leader", replicated.KILL_COLUMNS, replicated.kill_lines(rows)),
    ):
        table = Table(title=title, title_justify="left")
        for column in columns:
            table.add_column(column)
        for line in lines:
            table.add_row(*line)
        report.console.print(table)


def run_guard(context: Context, report: Report, base: str) -> None:
    """Compare the working tree with a revision and report it."""
    found = guard.Comparison(base)
    for number, _ in enumerate(guard.compare(context, found), start=1):
        context.say(f"  guard: round {number} of {context.rounds}")
    title = f"the working tree beside {base}, {context.rounds} rounds in turns"
    table = Table(title=title, title_justify="left")
    for column in guard.COLUMNS:
        table.add_column(column, justify="left" if column == "way" else "right")
    for line in found.lines():
        table.add_row(*line)
    report.console.print(table)
    report.guard = {"base": base, "turns": found.turns}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/run.py", description=__doc__.split("\n")[0])
    names = (*NAMES, GUARD)
    parser.add_argument("--only", action="append", choices=names, default=[], metavar="NAME")
    parser.add_argument("--base", default="HEAD", help="the revision that guard compares with")
    parser.add_argument("--quick", action="store_true", help="small loads, one round")
    parser.add_argument("--rounds", type=int, default=0, help="3, or 1 with --quick")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there")
    parser.add_argument("--no-profile", action="store_true", help="do not profile what missed")
    parser.add_argument(
        "--directory",
        type=Path,
        default=Path(tempfile.gettempdir()),
        help="on the disk that is measured; %(default)s",
    )
    parser.epilog = "NAME is one of " + ", ".join(names)
    return parser.parse_args()


def _guarded(name: str, context: Context, report: Report, work: Callable[[], None]) -> None:
    """Run one scenario; report a failure and go on with the others."""
    report.busy[name] = round(busy_share(), 3)
    if report.busy[name] > _BUSY_SHARE:
        context.say(f"{name}: other programs use {report.busy[name]:.0%} of this machine's cores")
    try:
        work()
    except VqError as error:
        report.failures[name] = f"{type(error).__name__}: {error}"
        report.console.print(f"FAILED {name}: {error}", style="bold", markup=False)


def main() -> int:
    """Run the benchmark; return its exit code."""
    arguments = _arguments()
    os.chdir(ROOT)
    os.environ["PYTHONPATH"] = str(ROOT)
    arguments.directory.mkdir(parents=True, exist_ok=True)
    console = Console(width=None if sys.stdout.isatty() else 150)
    begin = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - begin:7.1f} s] {text}", file=sys.stderr, flush=True)

    context = Context(
        directory=arguments.directory.resolve(),
        rounds=arguments.rounds or (1 if arguments.quick else 3),
        quick=arguments.quick,
        say=say,
    )
    before = machine(context.directory)
    console.print(", ".join(f"{key} {value}" for key, value in before.items()), highlight=False)
    if before["file_system"] in {"tmpfs", "ramfs", "overlay"}:
        say(f"{context.directory} is on {before['file_system']}: fdatasync may cost nothing there")
    bare = baseline.measure(str(context.directory), seconds=context.baseline_s)
    console.print(f"the baseline: {asdict(bare)}", highlight=False)
    report = Report(console)
    about = {
        "machine": before,
        "quick": arguments.quick,
        "rounds": context.rounds,
        "baseline": asdict(bare),
        "peers": [asdict(found) for _, found in compare.look_for_peers()],
        "replicated_peers": [asdict(found) for _, found in replicated.look_for_peers()],
    }

    def keep() -> None:
        if arguments.json:
            arguments.json.write_text(json.dumps({**about, **report.as_json()}, indent=1))

    wanted = arguments.only or NAMES
    for scenario in SCENARIOS:
        if scenario.name in wanted:
            _guarded(
                scenario.name,
                context,
                report,
                functools.partial(
                    run_scenario, scenario, context, report, profiles=not arguments.no_profile
                ),
            )
            keep()  # after each scenario, so that an interrupted run keeps its results
    if PEERS in wanted:
        _guarded(PEERS, context, report, lambda: run_peers(context, report))
        keep()
    if GUARD in wanted:
        rounds = arguments.rounds or (1 if arguments.quick else guard.ROUNDS)
        longer = dataclasses.replace(context, rounds=rounds)
        _guarded(GUARD, longer, report, lambda: run_guard(longer, report, arguments.base))
        keep()
    if REPLICATED in wanted:
        _guarded(REPLICATED, context, report, lambda: run_replicated_peers(context, report))
        keep()
    _finish(console, report, arguments.quick)
    if arguments.markdown:
        own = [row for row in report.rows if row.scenario not in {PEERS, REPLICATED}]
        peers = [row for row in report.rows if row.scenario == PEERS]
        tables = [markdown_table(COLUMNS, map(cells, own))] if own else []
        tables += [markdown_table(compare.COLUMNS, compare.lines(peers))] if peers else []
        three = [row for row in report.rows if row.scenario == REPLICATED]
        tables += replicated.tables(three) if three else []
        arguments.markdown.write_text("\n\n".join(tables) + "\n")
    return 1 if report.failures else 0


def _finish(console: Console, report: Report, quick: bool) -> None:
    missed = report.missed()
    judged = [row for row in report.rows if row.verdict is not Verdict.SHOWN]
    console.print(f"{len(judged) - len(missed)} of {len(judged)} targets met", style="bold")
    for row in missed:
        console.print(f"  missed: {row.name}: {shown(row.value)} {row.unit}, {row.target}")
    for name, failure in report.failures.items():
        console.print(f"  FAILED: {name}: {failure}", markup=False)
    if quick:
        console.print("--quick: the loads are small; these figures are meaningless")


if __name__ == "__main__":
    sys.exit(main())
