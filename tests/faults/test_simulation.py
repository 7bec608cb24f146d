"""T-SIM: whole clusters in virtual time, broken at random from a seed; no promise may be broken.

    seed ──▶ size, faults, latencies, chances
               │
               ▼
    brokers, producers, two groups, ZooKeeper ── seconds of faults ── heal ── drain ──▶ judge

The short form runs ``SEEDS`` seeds, ``VQ_LONG=1`` runs 3 000. A failure names its seed, and
``VQ_SEED=<seed> python -m pytest tests/faults/test_simulation.py -k one_seed -s`` replays it with a
trace of all that happened. ``VQ_LINES=vq.broker`` adds the log lines of a package.
"""

import logging
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.simulation import mutants, run
from support.simulation.archives import ARCHIVE, HANGING_PLACE
from support.simulation.copies import (
    ALL_FAULTS,
    COPY_COMBINATIONS,
    COPY_FAULTS,
    MOVES,
    UNCLEAN,
    draw_copy_kinds,
)
from support.simulation.kinds import COMBINATIONS, FAULTS, REPLICATION, draw_kinds
from support.simulation.operators import BALANCE
from support.simulation.world import Size

LONG = os.environ.get("VQ_LONG") == "1"
SEEDS = 3_000 if LONG else 18
COPIED_SEEDS = 2_000 if LONG else 2  # those with a shared group have copies, too
ASYNC_SEEDS = 400 if LONG else 3
BALANCE_SEEDS = 200 if LONG else 6
#: How long faults strike plans, in virtual time: long enough that some are gone on with.
BALANCE_S = 30.0 if LONG else 18.0
ARCHIVED_SEEDS = 400 if LONG else 3
BLOCK = 8
#: How long faults strike, in virtual time: a seed costs what its clients send meanwhile.
STRUCK_S = 30.0 if LONG else 7.0
#: The same of archives: blocks are to become some.
ARCHIVED_S = 30.0 if LONG else 14.0
#: The same of a run that is only compared with itself.
REPLAYED_S = 30.0 if LONG else 4.0
#: Of the interpreters that replay; the test process has one of its own.
HASH_SEEDS = ("0", "4711") if LONG else ("4711",)
#: How long one kind of fault strikes, in virtual time.
KIND_S = 20 if LONG else 4
#: The same of a place that hangs: it must have been reached before.
HANGING_S = 40 if LONG else 24
MUTANT_SEEDS_MAX = 100
#: Fewer acknowledged sends than this prove nothing.
ACKNOWLEDGED_MIN = 50


def explain(report: run.Report) -> str:
    """Return what is wrong and how to see it again."""
    return f"{report}\nreplay: VQ_SEED={report.seed} pytest {__file__} -k one_seed -s"


def explain_copied(report: run.Report) -> str:
    """The same for clusters with copies."""
    return f"{report}\nreplay: PYTHONPATH=tests python -m support.simulation --trace {report.seed}"


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_no_seed_breaks_a_promise(first: int) -> None:
    """Nothing acknowledged is lost, nothing is stored twice, reordered, skipped or invented."""
    for seed in range(first, min(first + BLOCK, SEEDS)):
        report = run.simulate(seed, seconds=STRUCK_S)
        assert not report.violations, explain(report)
        assert report.acknowledged >= ACKNOWLEDGED_MIN, f"seed {seed} is void"


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, COPIED_SEEDS, BLOCK))
def test_copies_come_to_what_their_masters_have(first: int) -> None:
    """Byte by byte, in all ranges of all partitions, whatever struck either of them."""
    for seed in range(first, min(first + BLOCK, COPIED_SEEDS)):
        report = run.simulate(seed, copied=True, seconds=STRUCK_S)
        assert not report.violations, explain_copied(report)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, ASYNC_SEEDS, BLOCK))
def test_an_async_topic_loses_only_what_a_take_over_may(first: int) -> None:
    """Beside a sync topic, which loses nothing; every second seed changes the setting."""
    for seed in range(first, min(first + BLOCK, ASYNC_SEEDS)):
        kinds = {*draw_kinds(seed), "kill broker", *([REPLICATION] if seed % 2 else [])}
        size = Size(copies=1, fast=True)
        report = run.simulate(seed, size=size, kinds=tuple(sorted(kinds)), seconds=STRUCK_S)
        assert not report.violations, explain(report)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, ASYNC_SEEDS, BLOCK))
def test_a_topic_flushed_late_loses_only_what_power_cuts_may_take(first: int) -> None:
    """With one to three nodes in a group; who had read it is told, and a sync topic is whole."""
    lost = 0
    for seed in range(first, min(first + BLOCK, ASYNC_SEEDS)):
        size = Size(copies=seed % 3, loose=True, filtered=seed % 2)
        kinds = {*draw_kinds(seed), "power cut", *(["black-out"] if seed % 3 else [])}
        report = run.simulate(seed, size=size, kinds=tuple(sorted(kinds)), seconds=STRUCK_S)
        assert not report.violations, explain(report)
        lost += sum(event[5] for event in report.history.of("loss"))
    assert lost, "no power cut met anything that was not flushed"


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, ASYNC_SEEDS, BLOCK))
def test_an_unclean_election_loses_only_what_the_node_lacked(first: int) -> None:
    """Nodes that had it keep it and list it, and groups that had read it are stopped."""
    elections, stopped = 0, 0
    for seed in range(first, min(first + BLOCK, ASYNC_SEEDS)):
        size = Size(copies=1 + seed % 2, loose=seed % 3 == 0, filtered=seed % 2)
        kinds = {*draw_kinds(seed), UNCLEAN} - MOVES
        report = run.simulate(seed, size=size, kinds=tuple(sorted(kinds)), seconds=STRUCK_S)
        assert not report.violations, explain(report)
        elections += report.effects.get(UNCLEAN, 0)
        stopped += sum(1 for _ in report.history.of("stopped"))
    assert elections
    assert stopped


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, ARCHIVED_SEEDS, BLOCK))
def test_archives_are_as_good_as_block_files(first: int) -> None:
    """On every node, whatever strikes it; copies have the same bytes, archived or not."""
    archived = 0
    for seed in range(first, min(first + BLOCK, ARCHIVED_SEEDS)):
        size = Size(copies=seed % 3)
        draw = draw_copy_kinds if seed % 3 else draw_kinds
        kinds = tuple(sorted({*draw(seed), ARCHIVE}))
        report = run.simulate(seed, size=size, kinds=kinds, seconds=ARCHIVED_S)
        assert not report.violations, explain(report)
        archived += report.effects.get(ARCHIVE, 0)
    assert archived >= (5 if LONG else 2)  # how many there are follows from all that is drawn


@pytest.mark.slow
def test_plans_that_die_half_way_and_are_gone_on_with_break_no_promise() -> None:
    """Moves under a lease, while brokers die, sessions end and answers are lost."""
    kinds = tuple(sorted({BALANCE, "kill broker", "expire", "lost reply", "lost request"}))
    effects: Counter[str] = Counter()
    for seed in range(BALANCE_SEEDS):
        size = Size(brokers=3, partitions=5, producers=1, members=1)
        report = run.simulate(seed, kinds=kinds, size=size, seconds=BALANCE_S)
        assert not report.violations, explain(report)
        assert report.acknowledged >= ACKNOWLEDGED_MIN
        effects.update(report.effects)
    assert effects[BALANCE] > 5
    assert effects["cut short"]
    assert effects["gone on"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_place_of_archives_that_hangs_keeps_nobody_from_sending(seed: int) -> None:
    """Nothing is refused, nor of unknown outcome; who reads what lies there waits, and goes on."""
    size = Size(brokers=1, partitions=2, producers=2, members=1, copies=1 + seed)
    report = run.simulate(seed, kinds=(ARCHIVE, HANGING_PLACE), size=size, seconds=HANGING_S)
    assert not report.violations, explain(report)
    assert report.effects["at a place"] > 2
    assert report.effects[HANGING_PLACE] > 0
    assert [*report.history.of("calm")]


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(FAULTS))
def test_every_kind_of_fault_strikes_and_is_survived(kind: str) -> None:
    """One kind at a time: it has an effect, messages flow all the same, no promise is broken."""
    size = Size(brokers=2, partitions=2, producers=2, members=2, filtered=1)
    report = run.simulate(1, kinds=(kind,), size=size, seconds=KIND_S)
    assert sum(report.faults.values()) > 1, "only the healing happened"
    assert not report.violations, explain(report)
    assert report.acknowledged >= ACKNOWLEDGED_MIN


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(COPY_FAULTS))
def test_every_kind_of_fault_of_copies_has_an_effect_and_is_survived(kind: str) -> None:
    """Not only that it strikes: something is held back, lost, added or taken away by it."""
    kinds = (kind, "expire") if kind == "deaf group" else (kind,)  # else there is nothing to hear
    size = Size(brokers=1, partitions=2, producers=2, members=2, copies=2)
    effects = 0
    for seed in range(4):
        report = run.simulate(seed, kinds=kinds, size=size, seconds=KIND_S)
        assert not report.violations, explain_copied(report)
        assert report.acknowledged >= ACKNOWLEDGED_MIN
        effects += report.effects.get(kind, 0)
        if effects:
            return
    pytest.fail(f"{kind} never had an effect")


@pytest.mark.slow
def test_a_seed_replays_whatever_the_hash_seed_of_the_interpreter() -> None:
    """Same seed, same history, event by event; another seed gives another history."""
    runs = ((3, False, False), (6, False, True), (3, True, False))  # seed, copied, shared

    def replay(seed: int, copied: bool, shared: bool) -> str:
        return run.simulate(seed, copied=copied, shared=shared, seconds=REPLAYED_S).hash

    here = [replay(*each) for each in runs]
    assert len(set(here)) == len(runs)
    program = (
        "from support.simulation.run import simulate\n"
        f"print(*(simulate(seed, copied=copied, shared=shared, seconds={REPLAYED_S}).hash"
        f" for seed, copied, shared in {runs}))"
    )
    tests = Path(__file__).parents[1]
    for hash_seed in HASH_SEEDS:
        environ = {**os.environ, "PYTHONHASHSEED": hash_seed}
        environ["PYTHONPATH"] = os.pathsep.join([str(tests), str(tests.parent)])
        ended = subprocess.run(
            [sys.executable, "-c", program], env=environ, capture_output=True, check=True, text=True
        )
        assert ended.stdout.split() == here


def test_faults_that_hurt_together_are_drawn_together() -> None:
    """Each combination is among the faults of some seed of the short form."""
    drawn = [set(draw_kinds(seed)) for seed in range(SEEDS)]
    for combination in COMBINATIONS:
        assert any(kinds >= set(combination) for kinds in drawn), combination
    assert set().union(*drawn) == set(FAULTS)


def test_faults_that_hurt_copies_together_are_drawn_together() -> None:
    drawn = [set(draw_copy_kinds(seed)) for seed in range(100)]
    for combination in COPY_COMBINATIONS:
        assert any(kinds >= set(combination) for kinds in drawn), combination
    assert all(kinds & set(COPY_FAULTS) for kinds in drawn)
    assert set().union(*drawn) == {*ALL_FAULTS, UNCLEAN}


@pytest.mark.long
@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=str)
def test_the_simulation_kills(mutant: mutants.Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variant of vq that breaks a promise is found out within a few seeds (M-MUT)."""
    mutant.patch(monkeypatch)
    for seed in range(MUTANT_SEEDS_MAX):
        if run.simulate(seed, kinds=mutant.kinds, size=mutant.size).violations:
            return
    pytest.fail(f"{mutant} survived {MUTANT_SEEDS_MAX} seeds")


@pytest.mark.skipif("VQ_SEED" not in os.environ, reason="replays the one seed that VQ_SEED names")
def test_one_seed_with_a_trace() -> None:
    """Print everything that happens under one seed."""
    for name in os.environ.get("VQ_LINES", "").split():
        logging.getLogger(name).setLevel(logging.DEBUG)
    report = run.simulate(int(os.environ["VQ_SEED"]), tell=_tell)
    print(report, report.hash, report.faults, sep="\n")
    assert not report.violations


def _tell(line: Any) -> None:
    if isinstance(line, tuple):
        time, kind, who, *rest = line
        print(f"{time:10.6f}  {kind:8} {who:12}", *rest)
    else:
        print(f"{'':10}  {line}")
