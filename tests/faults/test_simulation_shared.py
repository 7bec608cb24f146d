"""Shared groups on the simulated cluster: nothing lost, one holder at a time, counts, dead letters.

Every second group keeps the order of keys.

``python -m support.simulation --shared`` runs more seeds.
"""

import os
from collections.abc import Callable
from dataclasses import replace

import pytest
from support.cases import case
from support.shared_judge import Call, Said, SharedEvidence, judge_shared
from support.simulation import retained, run
from support.simulation.copies import MOVES, UNCLEAN
from support.simulation.kinds import draw_kinds
from support.simulation.run import KEYED_OF_4
from support.simulation.world import Size

from vq.broker.history import retaining
from vq.broker.shared.ledger import SharedSource
from vq.coordination.topics.needs import Needs

LONG = os.environ.get("VQ_LONG") == "1"
SEEDS = 1_000 if LONG else 3
BLOCK = 8
#: How long faults strike, in virtual time.
STRUCK_S = 30.0 if LONG else 6.0
RETAINED_SEEDS, RETAINED_S = (100, 20.0) if LONG else (1, 3.0)
UNCLEAN_SEEDS, UNCLEAN_S = (range(100), 30.0) if LONG else ((2,), 9.0)
LOSING = Size(brokers=1, partitions=2, members=1, shared=3)
RETAINED_ROWS = tuple(retained.ROWS) if LONG else ("alone", "keys")


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_no_seed_breaks_a_promise_of_a_shared_group(first: int) -> None:
    """Every second one with copies; some messages are given up, and others come late."""
    lost = letters = in_order = 0
    for seed in range(first, min(first + BLOCK, SEEDS)):
        with case(seed):
            report = run.simulate(seed, copied=seed % 2 == 1, shared=True, seconds=STRUCK_S)
            assert not report.violations, report
            said = [event[4] for event in report.history.of("said")]
            assert said.count("ok") > 50
            lost += said.count("lost")
            letters += report.effects["dead letters"]
            in_order += report.effects.get("in order", 0)
    assert lost
    assert letters
    assert in_order


@pytest.mark.slow
@pytest.mark.parametrize("row", RETAINED_ROWS)
def test_retention_deletes_nothing_that_is_open(row: str) -> None:
    """With ``keep``, blocks go while members are at messages of the next ones."""
    for seed in range(RETAINED_SEEDS):
        with case(seed):
            report = retained.play(seed, row, RETAINED_S)
            assert not report.violations, report
            assert report.effects["deleted"] > 50


@pytest.mark.slow
def test_an_unclean_election_costs_a_shared_group_only_what_the_log_lost() -> None:
    """All that is left is handled, although the group's journal has lost its end, too."""
    elections = 0
    for seed in UNCLEAN_SEEDS:
        with case(seed):
            size = replace(LOSING, copies=1 + seed % 2, keyed=seed % 4 in KEYED_OF_4)
            kinds = tuple(sorted({*draw_kinds(seed), UNCLEAN} - MOVES))
            report = run.simulate(seed, size=size, kinds=kinds, seconds=UNCLEAN_S)
            assert not report.violations, report
            elections += report.effects.get(UNCLEAN, 0)
    assert elections


async def _nobody_needs_it(*_: object) -> Needs:
    return Needs({"others": {0: 2**62, 1: 2**62}})


@pytest.mark.long
@pytest.mark.parametrize("low", [False, True])
def test_the_judge_sees_that_an_open_message_is_deleted(
    monkeypatch: pytest.MonkeyPatch, low: bool
) -> None:
    """Whether brokers do not ask what is open, or are told what was delivered last."""
    if low:
        monkeypatch.setattr(SharedSource, "low", property(lambda source: source.cursor))
    else:
        monkeypatch.setattr(retaining, "read_needs", _nobody_needs_it)
    lines = [line for seed in range(3) for line in retained.play(seed, "alone", 5.0).violations]
    assert any(line.startswith("shared: lost:") for line in lines), lines


# The judge ----------------------------------------------------------------------------------------
def call(message: str, who: str, at: float, attempts: int, *said: Said) -> Call:
    return Call(message, who, at, attempts, 2.0, list(said))


def ok(what: str, asked: float, seconds: float = 0.0) -> Said:
    return Said(what, asked, seconds, asked + 0.1, "ok")


def lost(what: str, asked: float) -> Said:
    return Said(what, asked, 0.0, asked + 0.1, "lost")


def story() -> list[Call]:
    """``a`` is done at once, ``b`` by the second member after the first was late, ``c`` fails.

    ``a`` and ``b`` have the same key, and so have ``c`` and ``d``, which waits until that is over.
    """
    return [
        call("a", "m1", 0.5, 1, ok("ack", 0.9)),
        call("b", "m1", 1.0, 1, lost("ack", 4.0)),
        call("b", "m2", 3.5, 2, ok("extend", 3.6, 2.0), ok("ack", 5.0)),
        call("c", "m1", 2.0, 1, Said("raise", 2.1)),
        call("c", "m2", 2.5, 2, Said("raise", 2.6)),
        call("d", "m2", 2.7, 1, ok("reject", 2.8)),
    ]


CLEAN = SharedEvidence(
    calls=story(),
    owed=frozenset("abcd"),
    poison=frozenset("c"),
    letters={"c": [2]},
    max_deliveries=2,
    lows=[(2.0, ["a"]), (6.0, ["b", "c", "d"])],
    queues=["ab", "cd"],
)


def told(change: Callable[[list[Call]], object]) -> SharedEvidence:
    calls = story()
    change(calls)
    return replace(CLEAN, calls=calls)


CASES = {
    "lost": replace(CLEAN, owed=frozenset("abcde")),
    "lost: it was too late": told(lambda calls: calls.pop(2)),
    "kept": replace(CLEAN, lows=[(0.8, ["a"])]),
    "kept: never": replace(CLEAN, lows=[(9.0, ["x"])]),
    "two_holders": told(lambda calls: calls.__setitem__(1, call("b", "m1", 1, 1, ok("ack", 4.0)))),
    "two_holders: extended": told(
        lambda calls: calls.__setitem__(1, call("b", "m1", 1, 1, ok("extend", 3.7, 2.0)))
    ),
    "done_is_done": told(lambda calls: calls.append(call("a", "m2", 9.0, 2))),
    "lease: somebody else has it": told(lambda calls: calls.append(call("b", "m1", 4.0, 3))),
    "lease: lost early": told(lambda calls: calls[2].said.__setitem__(1, lost("ack", 5.0))),
    "order: the one before is open": told(lambda calls: setattr(calls[0].said[0], "asked", 1.2)),
    "order: it is to be tried again": told(lambda calls: setattr(calls[5], "at", 2.55)),
    "order: nobody had the one before": replace(CLEAN, queues=["xa"]),
    "order: the one before comes again": told(lambda calls: calls.append(call("c", "m1", 3, 3))),
    "late": told(lambda calls: calls[0].said.__setitem__(0, ok("ack", 3.1))),
    "late: extended": told(lambda calls: calls[2].said.__setitem__(1, ok("ack", 5.8))),
    "counts": told(lambda calls: setattr(calls[2], "attempts", 1)),
    "counts: too many": told(lambda calls: setattr(calls[2], "attempts", 3)),
    "counts: no time to lapse": replace(
        told(lambda c: setattr(c[4], "attempts", 4)), max_deliveries=9
    ),
    "dead_letters: early": replace(CLEAN, letters={"c": [1]}),
    "dead_letters: nobody failed": told(lambda calls: calls[4].said.clear()),
    "dead_letters: done": replace(CLEAN, letters={"c": [2], "b": [3]}),
    "dead_letters: none": replace(CLEAN, letters={}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_judge_knows_what_must_not_be(name: str) -> None:
    """The rule of that name reports it."""
    rule, found = name.partition(":")[0], judge_shared(CASES[name])
    assert any(line.startswith(f"shared: {rule}:") for line in found), found


def test_a_clean_story_is_clean() -> None:
    """Nor is anything reported of a lease that began again, or if nothing happened at all."""
    assert judge_shared(CLEAN) == []
    again = told(lambda calls: calls[0].said.__setitem__(0, ok("ack", 3.1)))
    assert judge_shared(replace(again, take_overs=[2.5], lows=(), queues=())) == []
    spent = told(lambda calls: calls[4].said.clear())  # with the process; it is given up unseen
    assert judge_shared(replace(spent, letters={"c": [3]})) == []
    nothing = replace(CLEAN, calls=[], owed=frozenset(), poison=frozenset(), letters={}, lows=[])
    assert judge_shared(nothing) == []
