"""M-JUDGE: the judge allows the losses that power cuts and unclean elections explain, and no other.

A message is acknowledged and read, and is in no log at the end. Each story says why.
"""

from dataclasses import replace

import pytest
from support.simulation.history import Event
from support.simulation.judge import Evidence, Stored, judge
from support.simulation.losses import Loss

WHERE = "orders-0"
PLACE = (WHERE, 100, 2)
LOG = (Stored(88, 100, "p1#1/0", 1), Stored(112, 124, "p1#1/2", 3))
LATE: Event = (0.0, "set", "orders", "sync", "async")
FLUSHED: Event = (0.0, "set", "orders", "sync", "sync")
DARK = Loss(2.0, "power", "b1", "n1", frozenset({PLACE}))
OTHER_DARK = Loss(2.1, "power", "b1", "n2", frozenset())
EARLIER_DARK = Loss(0.5, "power", "b1", "n2", frozenset())
NAMED = Loss(2.0, "unclean", "b1", "n2", frozenset({PLACE}))
READ: tuple[Event, ...] = (
    (1.3, "read", "c1-1", WHERE, 88, 100, "p1#1/0"),
    (1.4, "read", "c1-1", WHERE, 100, 112, "p1#1/1"),
)
COMMITTED: Event = (1.5, "commit", "c1-1", WHERE, 112)
TOLD: tuple[Event, ...] = (
    (2.5, "stopped", "c1-1", WHERE, 112),
    (2.6, "reset", "shop", WHERE, 0),
)
AGAIN: tuple[Event, ...] = (
    (3.0, "own", "c1-1", WHERE, 2),
    (3.1, "read", "c1-1", WHERE, 88, 100, "p1#1/0"),
    (3.2, "read", "c1-1", WHERE, 112, 124, "p1#1/2"),
    (3.3, "commit", "c1-1", WHERE, 124),
)
ALONE: Event = (2.2, "lead", "n1", "b1", 2, "n1")
BOTH: Event = (2.2, "lead", "n1", "b1", 2, "n1", "n2")
OTHER: Event = (2.2, "lead", "n2", "b1", 2, "n1", "n2")


def story(*more: Event, losses: tuple[Loss, ...], told: tuple[Event, ...] = TOLD) -> Evidence:
    """Return a story in which ``p1#1/1`` is acknowledged, read, committed, and gone at the end."""
    events: list[Event] = [
        (0.1, "own", "c1-1", WHERE, 1),
        (1.0, "send", "p1#1", "p1#1/0"),
        (1.0, "send", "p1#1", "p1#1/1"),
        (1.1, "ok", "p1#1", "p1#1/0", WHERE, 88, 1),
        (1.1, "ok", "p1#1", "p1#1/1", WHERE, 100, 2),
        *READ,
        COMMITTED,
        *told,
        (2.7, "send", "p1#1", "p1#1/2"),
        (2.8, "ok", "p1#1", "p1#1/2", WHERE, 112, 3),
        *AGAIN,
        *more,
    ]
    return Evidence(
        events=sorted(events, key=lambda event: event[0]),
        log={WHERE: LOG},
        ends={WHERE: 124},
        committed={("shop", WHERE): 124},
        groups={"c": "shop"},
        is_for=lambda _member, _value: True,
        losses=losses,
    )


RIGHT = {
    "the only node lost power": story(LATE, ALONE, losses=(DARK,)),
    "all in sync lost power": story(LATE, BOTH, losses=(DARK, OTHER_DARK)),
    "a node leads that lacked it": story(FLUSHED, losses=(NAMED,)),
    "one lost it with power, and a node leads that lacked it": story(
        LATE, losses=(DARK, replace(NAMED, places=frozenset()))
    ),
}
WRONG = {
    "nothing explains it": story(LATE, ALONE, losses=()),
    "another topic is flushed late": story(
        FLUSHED, (0.0, "set", "views", "sync", "async"), ALONE, losses=(DARK,)
    ),
    "it was flushed before it counted": story(FLUSHED, ALONE, losses=(DARK,)),
    "one in sync had power": story(LATE, BOTH, losses=(DARK,)),
    "one in sync lost power before it was sent": story(LATE, BOTH, losses=(DARK, EARLIER_DARK)),
    "another node led": story(LATE, OTHER, losses=(DARK, OTHER_DARK)),
    "another message was lost": story(
        LATE, ALONE, losses=(replace(DARK, places=frozenset({(WHERE, 88, 1)})),)
    ),
    "the node that leads had it": story(FLUSHED, losses=(replace(NAMED, places=frozenset()),)),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_loss_that_is_explained_is_none(name: str) -> None:
    assert judge(RIGHT[name]) == []


@pytest.mark.parametrize("name", WRONG)
def test_a_loss_that_is_not_explained_is_found(name: str) -> None:
    """Both that it was acknowledged, and that it was read."""
    found = {line.partition(":")[0] for line in judge(WRONG[name])}
    assert {"lost", "inconsistent"} <= found


def test_a_group_that_is_not_told_is_found() -> None:
    """It has committed what is gone, and nobody stopped it."""
    found = judge(story(LATE, ALONE, losses=(DARK,), told=()))
    assert any(line.startswith("silent: shop was never told") for line in found)


def test_a_group_that_is_stopped_for_nothing_is_found() -> None:
    elsewhere = replace(DARK, places=frozenset({("orders-1", 100, 2)}))
    found = judge(story(LATE, ALONE, losses=(elsewhere,)))
    assert any("was told of a loss in orders-0" in line for line in found)


@pytest.mark.parametrize("told", [False, True])
def test_a_reader_that_goes_on_behind_what_is_gone_must_have_been_told(*, told: bool) -> None:
    reads: list[Event] = [
        (1.2, "asked", "a1#1", WHERE, 100),
        (1.2, "seen", "a1#1", WHERE, 100, 112, "p1#1/1"),
        (3.0, "asked", "a1#1", WHERE, 112),
        (3.0, "seen", "a1#1", WHERE, 112, 124, "p1#1/2"),
    ]
    if told:
        reads.append((2.9, "told", "a1#1", WHERE, "LogTruncated"))
    found = judge(story(LATE, ALONE, *reads, losses=(DARK,)))
    assert bool(found) is not told
    assert all("what was before it is gone" in line for line in found)
