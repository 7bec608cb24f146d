"""Run many seeds in several processes, and write a summary.

    python -m support.simulation --seeds 2000 --jobs 2           clusters with copies
    python -m support.simulation --seeds 500-600 --plain         without copies
    python -m support.simulation --having "full heir,slow links" those that draw such faults
    python -m support.simulation --kinds "slow links,hand over"   one group of three nodes
    python -m support.simulation --transactions                  clients make transactions
    python -m support.simulation --transforming                  with the offsets of a group
    python -m support.simulation --shared                        with members of a shared group
    python -m support.simulation --retained                      while what it is done with goes
    python -m support.simulation --trace 517                     one seed, with all that happens

The exit code is 1 if a seed broke a promise. ``--out`` gets ``summary.json``.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from support.simulation import retained, transforming
from support.simulation.copies import draw_copy_kinds
from support.simulation.run import Report, simulate
from support.simulation.transactions import ROWS, play
from support.simulation.world import Size

#: Seeds that one call of a worker runs.
_BLOCK = 5


def main(arguments: list[str]) -> int:
    """Do what the command line asks for; return the exit code."""
    options = _parse(arguments)
    if options.trace is not None:
        copied, shared = not options.plain, options.shared
        if shared:
            copied = options.trace % 2 == 1
        report = simulate(
            options.trace, copied=copied, shared=shared, seconds=options.seconds, tell=_tell
        )
        print(report, report.hash, report.faults, report.effects, sep="\n")
        return 1 if report.violations else 0
    first, end = options.seeds
    found: list[dict[str, Any]] = []
    begin = time.monotonic()
    seeds = [seed for seed in range(first, end) if options.having & {*draw_copy_kinds(seed), ""}]
    blocks = [seeds[at : at + _BLOCK] for at in range(0, len(seeds), _BLOCK)]
    with ProcessPoolExecutor(options.jobs) as pool:
        work = partial(_run_kinds, options.kinds) if options.kinds else _run_copied
        work = _run_transactions if options.transactions else work
        work = _run_transforming if options.transforming else work
        work = partial(_run_shared, options.seconds) if options.shared else work
        work = partial(_run_retained, options.seconds) if options.retained else work
        for results in pool.map(_run_plain if options.plain else work, blocks):
            found += results
            for result in results:
                if result["violations"]:
                    print(f"seed {result['seed']}:", *result["violations"][:5], sep="\n  ")
            _write(found, options, time.monotonic() - begin)
            if sys.stdout.isatty():
                print(f"\r{len(found)} of {len(seeds)} seeds", end="", flush=True)
    broken = [result["seed"] for result in found if result["violations"]]
    print(f"\n{len(found)} seeds, {len(broken)} broke a promise: {broken}")
    return 1 if broken else 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="support.simulation", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=_range, default=(0, 2_000), help="how many, or from-to")
    parser.add_argument(
        "--having", type=_names, default={""}, help="of those with copies: that draw one of these"
    )
    parser.add_argument("--kinds", type=_names, help="strike with these, one group of three nodes")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--plain", action="store_true", help="groups of one node")
    parser.add_argument("--transactions", action="store_true", help="clients make transactions")
    parser.add_argument("--transforming", action="store_true", help="with offsets of a group")
    parser.add_argument("--shared", action="store_true", help="with a shared group")
    parser.add_argument("--retained", action="store_true", help="the same, and retention is busy")
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="of faults; with --shared, --retained, --trace"
    )
    parser.add_argument("--trace", type=int, help="run one seed and show all that happens")
    parser.add_argument("--out", type=Path, default=Path(".test-artifacts/sim"))
    return parser.parse_args(arguments)


def _range(text: str) -> tuple[int, int]:
    first, dash, end = text.partition("-")
    return (int(first), int(end)) if dash else (0, int(first))


def _names(text: str) -> set[str]:
    return set(text.split(","))


def _run_copied(seeds: Iterable[int]) -> list[dict[str, Any]]:
    return [_told(simulate(seed, copied=True)) for seed in seeds]


def _run_kinds(kinds: set[str], seeds: Iterable[int]) -> list[dict[str, Any]]:
    size = Size(brokers=1, partitions=2, producers=2, members=2, copies=2)
    wanted = tuple(sorted(kinds))
    return [_told(simulate(seed, kinds=wanted, size=size)) for seed in seeds]


def _run_plain(seeds: Iterable[int]) -> list[dict[str, Any]]:
    return [_told(simulate(seed)) for seed in seeds]


def _run_transactions(seeds: Iterable[int]) -> list[dict[str, Any]]:
    rows = list(ROWS)
    return [_told(play(seed, rows[seed % len(rows)])) for seed in seeds]


def _run_transforming(seeds: Iterable[int]) -> list[dict[str, Any]]:
    rows = list(transforming.ROWS)
    return [_told(transforming.play(seed, rows[seed % len(rows)])) for seed in seeds]


def _run_shared(seconds: float, seeds: Iterable[int]) -> list[dict[str, Any]]:
    return [
        _told(simulate(seed, copied=seed % 2 == 1, shared=True, seconds=seconds)) for seed in seeds
    ]


def _run_retained(seconds: float, seeds: Iterable[int]) -> list[dict[str, Any]]:
    rows = list(retained.ROWS)
    return [_told(retained.play(seed, rows[seed % len(rows)], seconds)) for seed in seeds]


def _told(report: Report) -> dict[str, Any]:
    names = ("seed", "violations", "hash", "faults", "effects", "acknowledged", "unknown")
    names += ("refused", "delivered", "seconds")
    return {name: getattr(report, name) for name in names}


def _write(found: list[dict[str, Any]], options: argparse.Namespace, took_s: float) -> None:
    options.out.mkdir(parents=True, exist_ok=True)
    faults, effects = Counter[str](), Counter[str]()
    for result in found:
        faults.update(result["faults"])
        effects.update(result["effects"])
    totals = {
        name: sum(result[name] for result in found)
        for name in ("acknowledged", "unknown", "refused", "delivered")
    }
    summary = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "copied": not options.plain,
        "first": options.seeds[0],
        "seeds": len(found),
        "took_s": round(took_s),
        "simulated_s": round(sum(result["seconds"] for result in found)),
        **totals,
        "faults": dict(sorted(faults.items())),
        "effects": dict(sorted(effects.items())),
        "broken": [
            {"seed": result["seed"], "violations": result["violations"]}
            for result in found
            if result["violations"]
        ],
    }
    (options.out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")


def _tell(line: Any) -> None:
    if isinstance(line, tuple):
        at, kind, who, *rest = line
        print(f"{at:10.6f}  {kind:8} {who:12}", *rest)
    else:
        print(f"{'':10}  {line}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
