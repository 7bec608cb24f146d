"""Run rows of the table, and write a summary.

    python -m support.chaos                          all rows in their long form
    python -m support.chaos --rows T-KILL,T-PART --trials 10 --seed 17
    python -m support.chaos --list

``--trials`` is the number of faults of each row. The exit code is 1 if anything is wrong: a broken
promise, a run that did not come to its end, or a fault without effect. What such a run leaves is
kept: histories, logs and data directories.
"""

import argparse
import secrets
import signal
import sys
from pathlib import Path

from support.chaos import network, report
from support.chaos.rows import ROWS, Row
from support.chaos.run import Outcome, run


def main(arguments: list[str]) -> int:
    """Run what the command line asks for; return the exit code."""
    options = _parse(arguments)
    if options.list:
        print("\n".join(f"{row.name:10} {row.strikes:4}  {row.about}" for row in ROWS.values()))
        return 0
    if network.entered() or not network.why_not():
        network.enter(arguments)
    names = [name for name in ROWS if name != "SHORT"] if options.rows == "all" else options.rows
    rows = [ROWS[name] for name in (names.split(",") if isinstance(names, str) else names)]
    for row, lacking in [(row, row.why_not()) for row in rows]:
        if lacking:
            print(f"{row.name} is left out: {lacking}")
            rows.remove(row)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options.out.mkdir(parents=True, exist_ok=True)
    return _run_all(rows, options)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="support.chaos", description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="all", help="names, with commas between them")
    parser.add_argument("--trials", type=int, default=0, help="faults of each row")
    parser.add_argument("--seed", type=int, default=0, help="all random choices follow from it")
    parser.add_argument("--out", type=Path, default=Path(".test-artifacts/chaos"))
    parser.add_argument("--list", action="store_true", help="show the rows")
    options = parser.parse_args(arguments)
    options.seed = options.seed or secrets.randbits(31)
    unknown = set(options.rows.split(",")) - {*ROWS, "all"}
    if unknown:
        parser.error(f"no rows {', '.join(sorted(unknown))}; there are {', '.join(ROWS)}")
    return options


def _run_all(rows: list[Row], options: argparse.Namespace) -> int:
    outcomes: list[Outcome] = []
    for row in rows:
        left, number = options.trials or row.strikes, 0
        while left > 0:
            seed = options.seed + number
            strikes = min(left, row.per_run)
            directory = options.out / f"{row.name}-{seed}"
            print(f"{row.name}: seed {seed}, {strikes} faults", flush=True)
            outcomes.append(outcome := run(row, strikes, seed, directory.absolute()))
            print(f"{row.name}: {_told(outcome)}", flush=True)
            report.write(report.summary(outcomes, options.seed), options.out)
            left, number = left - strikes, number + 1
    print(report.table(report.summary(outcomes, options.seed)))
    return 0 if all(outcome.good for outcome in outcomes) else 1


def _told(outcome: Outcome) -> str:
    if outcome.failure:
        return f"seed {outcome.seed} FAILED\n{outcome.failure}"
    word = "good" if outcome.good else "void" if outcome.void else "BROKEN"
    return f"seed {outcome.seed} {word}, {outcome.seconds:.0f} s\n{outcome.verdict}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
