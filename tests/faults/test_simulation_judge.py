"""M-JUDGE: the judge finds every anomaly it is there for, and nothing in clean histories.

Each case is a story of two producers, one partition and one group, changed in one place.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
from support.simulation.history import Event
from support.simulation.judge import Evidence, Stored, judge
from support.simulation.kept import Kept

WHERE = "orders-0"
LOG = (
    Stored(88, 100, "p1#1/0", 1),
    Stored(100, 112, "p2#1/0", 2),
    Stored(200, 212, "p1#1/1", 3),
    Stored(212, 224, "p1#1/2", 4),
)
EVENTS: tuple[Event, ...] = (
    (0.0, "own", "c1-1", WHERE, 1),
    (1.0, "send", "p1#1", "p1#1/0"),
    (1.0, "send", "p2#1", "p2#1/0"),
    (1.1, "ok", "p1#1", "p1#1/0", WHERE, 88, 1),
    (1.1, "ok", "p2#1", "p2#1/0", WHERE, 100, 2),
    (1.2, "read", "c1-1", WHERE, 88, 100, "p1#1/0"),
    (1.3, "read", "c1-1", WHERE, 100, 112, "p2#1/0"),
    (1.4, "commit", "c1-1", WHERE, 112),
    (2.0, "send", "p1#1", "p1#1/1"),
    (2.0, "send", "p1#1", "p1#1/2"),
    (2.1, "ok", "p1#1", "p1#1/1", WHERE, 200, 3),
    (2.1, "unknown", "p1#1", "p1#1/2", "TimedOut"),
    (2.2, "own", "c2-1", WHERE, 2),
    (2.3, "seen", "a1#1", WHERE, 200, 212, "p1#1/1"),
    (2.4, "read", "c2-1", WHERE, 200, 212, "p1#1/1"),
    (2.5, "read", "c2-1", WHERE, 212, 224, "p1#1/2"),
    (2.6, "commit", "c2-1", WHERE, 224),
)
CLEAN = Evidence(
    events=EVENTS,
    log={WHERE: LOG},
    ends={WHERE: 224},
    committed={("shop", WHERE): 224},
    groups={"c": "shop"},
    is_for=lambda _member, _value: True,
)
READ_AGAIN: Event = (2.45, "read", "c2-1", WHERE, 100, 112, "p2#1/0")


def events(change: Callable[[list[Event]], object]) -> Evidence:
    """Return the clean story with its events changed."""
    changed = list(EVENTS)
    change(changed)
    return replace(CLEAN, events=changed)


def without(*dropped: Event) -> Evidence:
    """Return the clean story without some events."""
    return replace(CLEAN, events=[event for event in EVENTS if event not in dropped])


def log(*stored: Stored, end: int = 224) -> Evidence:
    """Return the clean story with another final log."""
    return replace(CLEAN, log={WHERE: stored}, ends={WHERE: end})


CASES = {
    "noticed_at_once": events(lambda e: e.append((3.0, "broken", "b1", "crashed"))),
    "outcome_told_twice": events(lambda e: e.append((3.0, "refused", "p1#1", "p1#1/1", "Busy"))),
    "lost": log(*LOG[1:]),
    "lost elsewhere": events(
        lambda e: e.__setitem__(3, (1.1, "ok", "p1#1", "p1#1/0", WHERE, 87, 1))
    ),
    "aborted": events(lambda e: e.__setitem__(11, (2.1, "refused", "p1#1", "p1#1/2", "NotSent"))),
    "refused_for_nothing": events(lambda e: e.append((2.7, "calm", "all", 2.0))),
    "refused_for_nothing at all": events(lambda e: e.append((9.0, "calm", "all", 6.5))),
    "invented": log(*LOG, Stored(224, 230, "p9#1/0", 9), end=230),
    "duplicate": log(*LOG, Stored(224, 236, "p1#1/0", 1), end=236),
    "same_id": log(*LOG[:3], replace(LOG[3], id=1)),
    "reordered": log(*LOG[:2], replace(LOG[2], value="p1#1/2"), replace(LOG[3], value="p1#1/1")),
    "inconsistent": events(
        lambda e: e.__setitem__(13, (2.3, "seen", "a1#1", WHERE, 200, 212, "p1#1/0"))
    ),
    "inconsistent: un-happened": events(
        lambda e: e.append((3.0, "seen", "a1#1", WHERE, 300, 312, "p1#1/7"))
    ),
    "unreadable": replace(CLEAN, ends={WHERE: 300}),
    "unseen": without(EVENTS[15]),
    "unseen: not committed": replace(CLEAN, committed={("shop", WHERE): 212}),
    "progress: back": events(lambda e: e.append((3.0, "commit", "c2-1", WHERE, 112))),
    "progress: ahead": events(lambda e: e.insert(14, (2.35, "commit", "c2-1", WHERE, 224))),
    "skipped": without(EVENTS[14]),
    "skipped: no claim": without(EVENTS[12]),
    "skipped: backwards": events(lambda e: e.insert(15, READ_AGAIN)),
    "delivered_again": events(lambda e: e.insert(15, READ_AGAIN)),
    "delivered_again: beside the owner": events(
        lambda e: e.insert(14, (2.35, "read", "c1-1", WHERE, 200, 212, "p1#1/1"))
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_an_anomaly_is_found(name: str) -> None:
    """The check of that name reports it."""
    check = name.partition(":")[0].split()[0]
    assert any(line.startswith(f"{check}:") for line in judge(CASES[name])), judge(CASES[name])


def test_a_clean_history_is_clean() -> None:
    """Nothing is reported, nor when nothing happened at all."""
    assert judge(CLEAN) == []
    assert judge(replace(CLEAN, events=(), log={}, ends={}, committed={})) == []


def test_what_nobody_was_promised_is_no_loss() -> None:
    """A send of unknown outcome may be missing; one refused must be."""
    unknown = log(*LOG[:3], end=212)
    gone = [event for event in EVENTS if event[-1] != "p1#1/2"]
    assert judge(replace(unknown, events=gone, committed={("shop", WHERE): 212})) == []


@pytest.mark.parametrize("kind", ["kill", "pause", "expire", "disconnect", "ensemble away"])
def test_a_fault_excuses_a_second_delivery(kind: str) -> None:
    """A member that was struck may have its last messages delivered again, by its heir."""
    target = "all" if kind == "ensemble away" else "c1"
    story = list(EVENTS)
    story[7:8] = [(1.4, "fault", kind, target, 1.0)]  # instead of the commit
    story[14:14] = [
        (2.31, "read", "c2-1", WHERE, 88, 100, "p1#1/0"),
        (2.32, "read", "c2-1", WHERE, 100, 112, "p2#1/0"),
    ]
    assert judge(replace(CLEAN, events=story)) == []
    story[7] = (1.4, "fault", kind, "c7", 1.0)
    found = judge(replace(CLEAN, events=story))
    assert any(line.startswith("delivered_again") for line in found)


def test_a_filtering_group_owes_only_what_matches() -> None:
    """What its filter drops is neither unseen nor skipped."""
    only = replace(
        CLEAN,
        events=[event for event in EVENTS if event[1] != "read" or event[6].startswith("p1")],
        is_for=lambda _member, value: value.startswith("p1"),
    )
    assert judge(only) == []


# Topics whose messages the master acknowledges alone ----------------------------------------------
def lost_one(*before: Event, kept: Kept | None, after: tuple[Event, ...] = ()) -> Evidence:
    """Return a story whose last acknowledged message, at 1.1 s, is in no log and nobody read it."""
    ends = (1.1, "ok", "p1#1", "p1#1/3", WHERE, 224, 5)
    story = [*before, *EVENTS, (1.0, "send", "p1#1", "p1#1/3"), ends, *after]
    files = {} if kept is None else {(WHERE, 224, 5): [kept]}
    return replace(CLEAN, events=story, kept=files)


FAST: Event = (0.0, "set", "orders", "async")
LED: tuple[Event, ...] = ((0.1, "lead", "n1", "b1", 1), (1.2, "lead", "n2", "b1", 2))
KEPT = Kept("b1", "n1", 1)


def test_a_take_over_may_lose_what_the_master_acknowledged_alone() -> None:
    """If the old master keeps it, and another node has led since."""
    assert judge(lost_one(FAST, *LED, kept=KEPT)) == []


@pytest.mark.parametrize(
    ("story", "why"),
    [
        (lost_one(*LED, kept=KEPT), "by all nodes in sync"),
        (lost_one((0.0, "set", "orders", "sync"), *LED, kept=KEPT), "by all nodes in sync"),
        (lost_one((0.0, "set", "clicks", "async"), *LED, kept=KEPT), "by all nodes in sync"),
        (
            lost_one(
                (-20.0, "set", "orders", "async"), (-19.0, "set", "orders", "sync"), kept=KEPT
            ),
            "by all nodes in sync",
        ),
        (lost_one(FAST, *LED, kept=None), "and no node keeps it"),
        (lost_one(FAST, LED[0], kept=KEPT), "and nobody took over"),
        (lost_one(FAST, *LED, kept=Kept("b1", "n1", 2)), "and nobody took over"),
        (lost_one(FAST, *LED, kept=Kept("b2", "n1", 1)), "and nobody took over"),
        (lost_one(FAST, *LED, kept=Kept("b1", "n2", 1)), "and nobody took over"),
    ],
)
def test_no_other_loss_is_allowed(story: Evidence, why: str) -> None:
    """Nor one of a topic that became sync long before."""
    assert [line for line in judge(story) if line.startswith("lost") and why in line]


def test_what_was_read_may_not_be_lost() -> None:
    """Nor may other bytes be under its offset."""
    seen = (1.15, "seen", "a1#1", WHERE, 224, 236, "p1#1/3")
    found = judge(lost_one(FAST, *LED, kept=KEPT, after=(seen,)))
    assert [line.partition(":")[0] for line in found] == ["inconsistent"]


def test_a_change_to_sync_counts_when_the_brokers_have_read_it() -> None:
    """A moment after the change a master may not know of it."""
    story = (0.0, "set", "orders", "async"), (1.0, "set", "orders", "sync")
    assert judge(lost_one(*story, *LED, kept=KEPT)) == []
