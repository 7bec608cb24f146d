"""The tables of a partition's states: every state and every event, and what each state allows."""

import dataclasses
import itertools
import string

import pytest
from support.tool import load_tool

from vq.broker.partition.partition_state import (
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
from vq.store.log.log import LogState

#: What ZooKeeper says of a partition, as this group sees it.
PLACED = [event for event in Event if event.startswith("placed_")]
#: What an open log says of itself.
LOGS = [Event.SEAL_FOUND, Event.SHORT_FOUND, Event.DAMAGE_FOUND]
#: Errors of the disk, and the end of the topic or the node.
ENDS = {
    Event.FAIL: State.FAILED,
    Event.OPEN_FAILED: State.UNREADABLE,
    Event.CLOSE: State.CLOSED,
}
ENDED = [*ENDS.values()]
LIVE = [state for state in State if state not in ENDED]
#: The states in which the placement gives the appends to this group, by what it says.
OWN = {
    Event.PLACED_TO_WRITE: State.WRITES,
    Event.PLACED_READ_ONLY: State.READ_ONLY,
    Event.PLACED_NOT_WRITABLE: State.NOT_WRITABLE,
}


def reached(start: State, *, without: tuple[Event, ...] = ()) -> set[State]:
    """Every state that some events lead to from ``start``, none of them in ``without``."""
    found, new = {start}, [start]
    while new:
        for event, following in TRANSITIONS[new.pop()].items():
            if event not in without and following not in found:
                found.add(following)
                new.append(following)
    return found


def test_an_event_leads_on_where_the_table_has_it_and_is_a_bug_elsewhere() -> None:
    for state, event in itertools.product(State, Event):
        if event in TRANSITIONS[state]:
            assert next_state(state, event) is TRANSITIONS[state][event]
            continue
        with pytest.raises(InternalError, match=f"{state} cannot take the event {event}"):
            next_state(state, event)


def test_every_state_is_reached_and_every_event_used() -> None:
    assert set(TRANSITIONS) == reached(State.OPENING) == set(RULES) == set(State)
    assert {event for events in TRANSITIONS.values() for event in events} == set(Event)
    assert list(EVENTS) == list(Event)


def test_an_error_of_the_disk_ends_every_state_that_lives() -> None:
    for state, (event, end) in itertools.product(LIVE, ENDS.items()):
        assert next_state(state, event) is end


def test_only_a_closed_topic_or_node_ends_what_ended() -> None:
    """The first I/O error is the last: no placement and no log makes it take messages again."""
    for state in ENDED:
        assert reached(state) == {state, State.CLOSED}, state


def test_the_placement_says_what_a_partition_with_a_sound_log_does() -> None:
    """But for a move that is on, and what is damaged or prepared: see below."""
    wanted = OWN | {
        Event.PLACED_DELETED: State.DELETED,
        Event.PLACED_TO_READ: State.READS,
        Event.PLACED_ELSEWHERE: State.ELSEWHERE,
    }
    exempt = {State.SEALED, State.QUARANTINED, State.PREPARED}
    for state in set(LIVE) - exempt:
        assert {event: next_state(state, event) for event in PLACED} == wanted, state
    assert [next_state(State.PREPARED, event) for event in PLACED] == [
        State.PREPARED if event is Event.PLACED_ELSEWHERE else wanted[event] for event in PLACED
    ]


def test_messages_are_taken_only_after_the_placement_says_so() -> None:
    """A log that is opened, unsealed or put in the place of another one takes none by itself."""
    for state in set(LIVE) - {State.WRITES}:
        assert State.WRITES not in reached(state, without=(Event.PLACED_TO_WRITE,)), state


def test_a_log_that_is_not_whole_and_open_takes_no_messages() -> None:
    special = [State.UNSEALING, State.UNPREPARED, State.QUARANTINED]
    for state, (event, then) in itertools.product(OWN.values(), zip(LOGS, special, strict=True)):
        assert next_state(state, event) is then
        assert not RULES[then].append


def test_a_move_is_ended_by_its_end_alone() -> None:
    """Its source counts on the end of the log, so settings that change meanwhile do not matter."""
    for state in (*OWN.values(), State.UNSEALING):
        assert next_state(state, Event.SEAL) is State.SEALED
    stays = {event for event, then in TRANSITIONS[State.SEALED].items() if then is State.SEALED}
    assert stays == {
        *OWN,
        Event.PLACED_DELETED,
        Event.SEAL_FOUND,
        Event.SHORT_FOUND,
        Event.SEAL,
        Event.PUT_ASIDE,
    }
    assert next_state(State.SEALED, Event.MOVE_OVER) is State.OPENING
    assert next_state(State.SEALED, Event.PLACED_TO_READ) is State.READS
    assert next_state(State.SEALED, Event.PLACED_ELSEWHERE) is State.ELSEWHERE
    for state in set(LIVE) - {State.SEALED, State.PREPARED}:
        assert next_state(state, Event.MOVE_OVER) is state  # a version that changed, and no move


def test_damage_inside_a_log_ends_with_another_log_alone() -> None:
    """Neither the placement nor the end of a move makes it serve."""
    sources = {state for state in State if Event.DAMAGE_FOUND in TRANSITIONS[state]}
    for state in sources - {State.PREPARED} - set(ENDED):
        assert next_state(state, Event.DAMAGE_FOUND) is State.QUARANTINED
    another = (Event.PUT_ASIDE, Event.ADOPT)
    assert reached(State.QUARANTINED, without=another) == {State.QUARANTINED, *ENDED}
    assert next_state(State.QUARANTINED, Event.PUT_ASIDE) is State.OPENING


def test_a_log_that_changes_is_looked_at_anew_where_it_is_to_take_appends() -> None:
    """Elsewhere it says nothing new."""
    assert {s: row[Event.UNSEALED] for s, row in TRANSITIONS.items() if Event.UNSEALED in row} == {
        State.UNSEALING: State.OPENING
    }
    aside = {s: row[Event.PUT_ASIDE] for s, row in TRANSITIONS.items() if Event.PUT_ASIDE in row}
    quiet = {State.READS, State.PREPARED, State.SEALED}
    assert {state for state, then in aside.items() if then is state} == quiet
    assert {state for state, then in aside.items() if then is State.OPENING} == {
        *OWN.values(),
        State.DELETED,
        State.UNPREPARED,
        State.UNSEALING,
        State.QUARANTINED,
    }
    for state, event in itertools.product(set(LIVE) - {*OWN.values()}, LOGS[:2]):
        assert TRANSITIONS[state].get(event, state) is state


def test_a_group_without_a_range_prepares_for_a_move_and_gives_it_up_when_it_ends() -> None:
    assert {s for s in State if TRANSITIONS[s].get(Event.ADOPT) is State.PREPARED} == {
        State.ELSEWHERE,
        State.PREPARED,
        State.QUARANTINED,
    }
    assert next_state(State.PREPARED, Event.MOVE_OVER) is State.ELSEWHERE


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
    module = load_tool("states")
    assert module.TARGET.read_text() == module.render(), "run `make docs`"
