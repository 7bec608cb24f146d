"""The tables of a partition's states: every state and every event, and what each state allows."""

import dataclasses
import itertools
import string

import pytest
from support.tool import load_tool

from vq.broker.partition_state import (
    EVENTS,
    RULES,
    TRANSITIONS,
    Event,
    State,
    found,
    next_state,
    placed,
)
from vq.errors import InternalError
from vq.model import PartitionPlacement, PartitionState, Span, TopicSettings
from vq.store.log import LogState

#: The next state by state and event, "-" where the event must not happen. Written by hand, so that
#: a change of the table is a change of this picture, too. Columns: placed to write, read only, not
#: writable, deleted, to read, elsewhere; seal, short, damage found; SEAL, ADOPT, move over,
#: unsealed, put aside; fail, open failed, close.
PICTURE = """
             wr ro nw dl rd el  sf sh dm  se ad mo us pa  fa of cl
opening      wr ro nw dl rd el  -  -  -   -  -  op -  -   fa un cl
writes       wr ro nw dl rd el  us up qu  se -  wr -  op  fa un cl
read_only    wr ro nw dl rd el  us up qu  se -  ro -  op  fa un cl
not_writable wr ro nw dl rd el  us up qu  se -  nw -  op  fa un cl
deleted      wr ro nw dl rd el  dl dl qu  -  -  dl -  op  fa un cl
reads        wr ro nw dl rd el  rd -  qu  -  -  rd -  rd  fa un cl
elsewhere    wr ro nw dl rd el  el -  qu  -  pr el -  -   fa un cl
prepared     wr ro nw dl rd pr  pr -  pr  -  pr el -  pr  fa un cl
unprepared   wr ro nw dl rd el  -  -  -   -  -  up -  op  fa un cl
sealed       se se se se rd el  se se qu  se -  op -  se  fa un cl
unsealing    wr ro nw dl rd el  -  -  -   se -  us op op  fa un cl
quarantined  qu qu qu qu qu qu  -  -  qu  -  pr qu -  op  fa un cl
failed       fa fa fa fa fa fa  fa fa fa  -  -  fa -  -   fa fa cl
unreadable   un un un un un un  un un un  -  -  un -  -   un un cl
closed       cl cl cl cl cl cl  cl cl cl  -  -  cl -  -   cl cl cl
"""
SHORT = {
    "op": State.OPENING,
    "wr": State.WRITES,
    "ro": State.READ_ONLY,
    "nw": State.NOT_WRITABLE,
    "dl": State.DELETED,
    "rd": State.READS,
    "el": State.ELSEWHERE,
    "pr": State.PREPARED,
    "up": State.UNPREPARED,
    "se": State.SEALED,
    "us": State.UNSEALING,
    "qu": State.QUARANTINED,
    "fa": State.FAILED,
    "un": State.UNREADABLE,
    "cl": State.CLOSED,
}
ROWS = {row.split()[0]: row.split()[1:] for row in PICTURE.strip().splitlines()[1:]}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)))
def test_every_event_in_every_state_leads_on_or_raises(state: State, event: Event) -> None:
    wanted = ROWS[state][list(Event).index(event)]
    if wanted == "-":
        with pytest.raises(InternalError, match=f"{state} cannot take the event {event}"):
            next_state(state, event)
    else:
        assert next_state(state, event) is SHORT[wanted]


def test_the_tables_and_the_picture_have_every_state_and_event() -> None:
    assert list(TRANSITIONS) == list(RULES) == list(ROWS) == list(State)
    assert list(EVENTS) == list(Event)
    assert all(len(row) == len(Event) for row in ROWS.values())


def test_a_placement_and_a_log_are_looked_at_in_every_state() -> None:
    """They come from outside at any time: the placement first, then the log, if one is open.

    Only a log of a range that takes the appends can be too short for it.
    """
    told = [event for event in Event if event.startswith("placed_")]
    told += [Event.MOVE_OVER, Event.FAIL, Event.OPEN_FAILED, Event.CLOSE]
    for state in State:
        assert set(told) <= set(TRANSITIONS[state])
        for event in told[:5]:
            after = TRANSITIONS[state][event]
            log = {Event.DAMAGE_FOUND}
            if after is not State.QUARANTINED:
                log.add(Event.SEAL_FOUND)
                if event not in {Event.PLACED_TO_READ, Event.PLACED_ELSEWHERE}:
                    log.add(Event.SHORT_FOUND)
            assert log <= set(TRANSITIONS[after]), (state, event)


def test_requests_are_allowed_where_their_events_are() -> None:
    for state, rules in RULES.items():
        assert rules.seal == (Event.SEAL in TRANSITIONS[state]), state
        assert rules.adopt or Event.ADOPT not in TRANSITIONS[state], state
        assert not (rules.seal and rules.adopt), "a group that takes the appends adopts nothing"
    assert [state for state, rules in RULES.items() if rules.append] == [State.WRITES]
    assert {state for state, rules in RULES.items() if not rules.read} == {
        State.UNREADABLE,
        State.CLOSED,
    }


def test_only_a_closed_topic_or_node_ends_what_ended() -> None:
    for state in (State.FAILED, State.UNREADABLE, State.CLOSED):
        assert set(TRANSITIONS[state].values()) == {state, State.CLOSED}


def test_a_state_that_refuses_says_why_and_tells_a_known_word() -> None:
    names = {"partition", "topic", "group", "writer", "placed", "log", "cause"}
    for rules in RULES.values():
        fields = {field for _, field, _, _ in string.Formatter().parse(rules.why)}
        assert fields - {None} <= names
        assert bool(rules.why) == (not rules.append)
        known = {"rw", "ro", "closed", "deleted", "sealed", "failed", "quarantined"}
        assert rules.told in known
        assert rules.meaning.endswith(".")


MINE = PartitionPlacement("t", 0, (Span("b1", 0, None),))
MOVED = PartitionPlacement("t", 0, (Span("b1", 0, 9), Span("b2", 9, None)))


def test_a_placement_is_named_as_the_group_sees_it() -> None:
    writable, forbidden = TopicSettings(), TopicSettings(writable=False)
    read_only = dataclasses.replace(MINE, state=PartitionState.RO)
    assert placed(MINE, writable, "b1", holds_range=True) is Event.PLACED_TO_WRITE
    assert placed(MINE, forbidden, "b1", holds_range=True) is Event.PLACED_NOT_WRITABLE
    assert placed(read_only, forbidden, "b1", holds_range=True) is Event.PLACED_READ_ONLY
    assert placed(MOVED, forbidden, "b1", holds_range=True) is Event.PLACED_TO_READ
    assert placed(MINE, writable, "b2", holds_range=False) is Event.PLACED_ELSEWHERE
    for each in (MINE, MOVED):
        deleted = dataclasses.replace(each, state=PartitionState.DELETED)
        assert placed(deleted, writable, "b1", holds_range=True) is Event.PLACED_DELETED
        assert placed(deleted, writable, "b3", holds_range=False) is Event.PLACED_ELSEWHERE


def test_what_is_special_about_a_log_is_named() -> None:
    """Damage counts before a seal, a seal before a log that is too short."""
    for short in (False, True):
        assert found(LogState.QUARANTINED, short=short) is Event.DAMAGE_FOUND
        assert found(LogState.SEALED, short=short) is Event.SEAL_FOUND
        assert found(LogState.FAILED, short=short) is None
    assert found(LogState.OK, short=True) is Event.SHORT_FOUND
    assert found(LogState.OK, short=False) is None


def test_the_page_is_drawn_from_the_tables() -> None:
    module = load_tool("partition_states")
    assert module.TARGET.read_text() == module.render(), "run `make docs`"
