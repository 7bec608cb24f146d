"""Writes measured figures into docs/performance.md, between its markers.

    python -m bench.run --json RESULT.json
    python -m bench.document RESULT.json [MORE.json ...]

For each scenario the last result with it counts. Only the text between ``<!-- begin NAME -->`` and
``<!-- end NAME -->`` is replaced, and of that only what the results have: a block or a table of a
scenario that they do not have stays as it is. A table of ``figures`` that is replaced alone gets
its machine beside it; the machine of the page is that of results with all of these tables.

Every block is a function of the results by scenario and of its present text.
"""

import itertools
import json
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench import compare, replicated, sends
from bench.features import FEATURES as FEATURES_MEASURED
from bench.features import FIGURES, SIZES, name_of
from bench.figures import COLUMNS, Row, Verdict, cells, markdown_table, shown
from bench.scenarios import PARTITION_COUNTS, SCENARIOS

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "performance.md"
PEERS: Final = "peers"
REPLICATED: Final = "replicated_peers"
FEATURES: Final = "features"
SENDS: Final = "sends"
#: Scenarios with a block of their own; the tables of the others are in ``figures``.
APART: Final = frozenset({FEATURES, SENDS})
NOTHING: Final = "Not measured."
_TABLE: Final = re.compile(r"^\*\*.*?\(`--only (\w+)`\)", re.MULTILINE)
Result = Mapping[str, Any]


def merged(results: Sequence[Result]) -> dict[str, Result]:
    """Return, per scenario, the last result that measured it without a failure."""
    found: dict[str, Result] = {}
    for result in results:
        for row in result["rows"]:
            if row["scenario"] not in result["failures"]:
                found[row["scenario"]] = result
    return found


def rows(by_scenario: Mapping[str, Result], scenario: str) -> list[Row]:
    """Return the rows of one scenario."""
    given = by_scenario[scenario]["rows"] if scenario in by_scenario else ()
    own = [Row(**row) for row in given if row["scenario"] == scenario]
    for row in own:
        row.verdict = Verdict(row.verdict)
    return own


def are_whole(by_scenario: Mapping[str, Result]) -> bool:
    """Return whether the results have every table of ``figures``."""
    return {scenario.name for scenario in SCENARIOS} - APART <= by_scenario.keys()


def machine(by_scenario: Mapping[str, Result], before: str = "") -> str:
    """Return the machine of all tables of ``figures``."""
    return about_machine(by_scenario) if are_whole(by_scenario) else before or NOTHING


def about_machine(by_scenario: Mapping[str, Result]) -> str:
    """Return the machine, and the share of it that other programs used."""
    about = next(iter(by_scenario.values()))["machine"]
    busy = [
        f"{name} {result['busy_before'][name]:.0%}"
        for name, result in by_scenario.items()
        if name in result["busy_before"]
    ]
    return (
        f"{about['processor']}, {about['cores']} cores, {about['memory_gb']:.0f} GB, "
        f"Linux {about['kernel']}, {about['file_system']}, Python {about['python']}, client loops "
        f"{about['client_loops']}. Share of the cores that other programs used just before each "
        f"scenario: {', '.join(busy)}."
    )


def baseline(by_scenario: Mapping[str, Result], before: str = "") -> str:
    """Return the baseline, measured once at the start of each result, as medians."""
    if not are_whole(by_scenario):
        return before or NOTHING
    results = {id(result): result for result in by_scenario.values()}.values()

    def median(name: str) -> float:
        return float(statistics.median(result["baseline"][name] for result in results))

    lines = [
        ("one at a time, placed by the kernel", f"{shown(median('one_at_a_time'))} requests/s"),
        ("one at a time, a core each", f"{shown(median('apart'))} requests/s"),
        ("pipelined, 128 bytes", f"{shown(median('pipelined'))} frames/s"),
        ("frames of 16 KiB", f"{shown(median('large_bytes') / 1e6)} MB/s"),
        ("fdatasync after 128 bytes", f"{shown(median('fdatasync_s') * 1e6)} µs"),
        ("200 bytes into a mapped file", f"{shown(median('mapped_store_s') * 1e6)} µs"),
    ]
    return markdown_table(("the bare machine", "median"), lines)


def figures(by_scenario: Mapping[str, Result], before: str = "") -> str:
    """Return a table per scenario."""
    tables = tables_of(before)
    for scenario in SCENARIOS:
        own = rows(by_scenario, scenario.name)
        if own and scenario.name not in APART:
            table = markdown_table(COLUMNS, [cells(row) for row in own])
            parts = [f"**{scenario.about}** (`--only {scenario.name}`)", table]
            if not are_whole(by_scenario):
                parts.insert(1, about_machine({scenario.name: by_scenario[scenario.name]}))
            tables[scenario.name] = "\n\n".join(parts)
    order = [scenario.name for scenario in SCENARIOS]
    return "\n\n".join(tables[name] for name in order if name in tables) or NOTHING


def tables_of(block: str) -> dict[str, str]:
    """Return the tables of ``figures`` by the name of the scenario, with their titles."""
    found = list(_TABLE.finditer(block))
    bounds = itertools.pairwise([*(match.start() for match in found), len(block)])
    return {
        match[1]: block[begin:end].strip()
        for match, (begin, end) in zip(found, bounds, strict=True)
    }


def peers(by_scenario: Mapping[str, Result], before: str = "") -> str:
    """Return the comparison, and the systems that were not found."""
    own = rows(by_scenario, PEERS)
    if not own:
        return before or NOTHING
    missing = [
        f"{peer['name']}: {peer['missing']}."
        for peer in by_scenario[PEERS]["peers"]
        if peer["missing"]
    ]
    parts = [
        f"{about_machine({PEERS: by_scenario[PEERS]})} Medians of {own[0].rounds} rounds.",
        markdown_table(compare.COLUMNS, compare.lines(own)),
    ]
    return "\n\n".join(parts + (["Not found here: " + " ".join(missing)] if missing else []))


def replicated_peers(by_scenario: Mapping[str, Result], before: str = "") -> str:
    """Return the comparison of systems of three nodes, and the systems that were not found."""
    own = rows(by_scenario, REPLICATED)
    if not own:
        return before or NOTHING
    result = by_scenario[REPLICATED]
    missing = [
        f"{peer['name']}: {peer['missing']}."
        for peer in result["replicated_peers"]
        if peer["missing"]
    ]
    rounds = f"Medians of {own[0].rounds} rounds."
    if result["quick"]:
        rounds = "Preliminary: one round with small loads (`--quick`), beside other programs."
    parts = [
        f"{about_machine({REPLICATED: result})} {rounds}",
        *replicated.tables(own),
    ]
    return "\n\n".join(parts + (["Not found here: " + " ".join(missing)] if missing else []))


def features(by_scenario: Mapping[str, Result], before: str = "") -> str:
    """Return what each feature costs, with its ratio to plain messages of the same size."""
    found = {row.name: row for row in rows(by_scenario, FEATURES)}
    if not found:
        return before or NOTHING
    lines = []
    for size in SIZES:
        for feature in FEATURES_MEASURED:
            own = [found[name_of(size, feature, figure)] for figure in FIGURES]
            values = (f"{shown(row.value)} ({shown(row.ratio)})" for row in own)
            lines.append((f"{size} bytes", feature, *values))
    titles = [f"{figure}, {unit}" for figure, unit in FIGURES.items()]
    table = markdown_table(("message", "feature", *titles), lines)
    rounds = next(iter(found.values())).rounds
    return (
        f"{about_machine({FEATURES: by_scenario[FEATURES]})} Medians of {rounds} rounds.\n\n{table}"
    )


def ways_to_send(by_scenario: Mapping[str, Result], before: str = "") -> str:
    """Return what each way to send costs, with its ratio to ``send_async`` with callbacks."""
    found = {row.name: row for row in rows(by_scenario, SENDS)}
    if not found:
        return before or NOTHING
    lines = [(way, f"{shown(found[way].value)} ({shown(found[way].ratio)})") for way in sends.WAYS]
    table = markdown_table(("way to send", f"producer, {sends.UNIT}"), lines)
    rounds = next(iter(found.values())).rounds
    return f"{about_machine({SENDS: by_scenario[SENDS]})} Medians of {rounds} rounds.\n\n{table}"


def flush(by_scenario: Mapping[str, Result], before: str = "") -> str:
    """Return the bare flush cycles that the partitions scenario measured."""
    lines = []
    for count, row in zip(PARTITION_COUNTS, rows(by_scenario, "partitions"), strict=False):
        cycle = [
            statistics.median(each[way] * 1e3 for each in row.details)
            for way in ("fdatasync_s", "syncfs_s")
        ]
        lines.append((str(count), *map(shown, cycle)))
    if not lines:
        return before or NOTHING
    return markdown_table(("k", "fdatasync in turn", "syncfs"), lines)


_BLOCKS: Final = (
    machine,
    baseline,
    figures,
    features,
    ways_to_send,
    peers,
    replicated_peers,
    flush,
)
BLOCKS: Final = {block.__name__: block for block in _BLOCKS}


def updated(page: str, by_scenario: Mapping[str, Result]) -> str:
    """Return the page with what the results have in its blocks.

    Raises:
        KeyError: The page has an unknown block.
    """

    def block(match: re.Match[str]) -> str:
        name, before = match[1], match[2].strip()
        text = BLOCKS[name](by_scenario, before)
        return f"<!-- begin {name} -->\n\n{text}\n\n<!-- end {name} -->"

    return re.sub(r"<!-- begin (\w+) -->(.*?)<!-- end \1 -->", block, page, flags=re.DOTALL)


def _with_baseline(fields: dict[str, Any]) -> dict[str, Any]:
    """Return an object of a result; earlier results call the baseline ``room``."""
    return {"baseline" if name == "room" else name: value for name, value in fields.items()}


def main() -> int:
    """Update the page from the results named on the command line."""
    results = [
        json.loads(Path(name).read_text(), object_hook=_with_baseline) for name in sys.argv[1:]
    ]
    if not results:
        print(__doc__, file=sys.stderr)
        return 2
    PAGE.write_text(updated(PAGE.read_text(), merged(results)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
