"""M-JUDGE: the judge finds every anomaly it is there for, and nothing in clean histories.

Each case is a story of two producers, one partition and one group, changed in one place.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
from support.simulation.history import Event
from support.simulation.judge import Evidence, Stored, judge

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
