"""The tables of a partition's states: every state and every event, and what each state allows."""

import dataclasses
import itertools
import string

import pytest
from support.tool import load_tool

from vq.broker.partition.partition_state import (
    RULES,
    TRANSITIONS,
    ChannelEvent,
    ChannelState,
    found,
    next_state,
    placed,
)
from vq.errors import InternalError
from vq.model import PartitionPlacement, PartitionState, Span, TopicSettings
from vq.store.log.log_config import LogState

#: What ZooKeeper says of a partition, as this group sees it.
PLACED = [event for event in ChannelEvent if event.startswith("placed_")]
#: What an open log says of itself.
LOGS = [ChannelEvent.SEAL_FOUND, ChannelEvent.SHORT_FOUND, ChannelEvent.DAMAGE_FOUND]
#: Errors of the disk, and the end of the topic or the node.
ENDS = {
    ChannelEvent.FAIL: ChannelState.FAILED,
    ChannelEvent.OPEN_FAILED: ChannelState.UNREADABLE,
    ChannelEvent.CLOSE: ChannelState.CLOSED,
}
ENDED = [*ENDS.values()]
LIVE = [state for state in ChannelState if state not in ENDED]
#: The states in which the placement gives the appends to this group, by what it says.
OWN = {
    ChannelEvent.PLACED_TO_WRITE: ChannelState.WRITES,
    ChannelEvent.PLACED_READ_ONLY: ChannelState.READ_ONLY,
    ChannelEvent.PLACED_NOT_WRITABLE: ChannelState.NOT_WRITABLE,
}


def reached(start: ChannelState, *, without: tuple[ChannelEvent, ...] = ()) -> set[ChannelState]:
    """Every state that some events lead to from ``start``, none of them in ``without``."""
    found, new = {start}, [start]
    while new:
        for event, following in TRANSITIONS[new.pop()].items():
            if event not in without and following not in found:
                found.add(following)
                new.append(following)
    return found


def test_an_event_leads_on_where_the_table_has_it_and_is_a_bug_elsewhere() -> None:
    for state, event in itertools.product(ChannelState, ChannelEvent):
        if event in TRANSITIONS[state]:
            assert next_state(state, event) is TRANSITIONS[state][event]
            continue
        with pytest.raises(InternalError, match=f"{state} cannot take the event {event}"):
            next_state(state, event)


def test_every_state_is_reached_and_every_event_used() -> None:
    assert set(TRANSITIONS) == reached(ChannelState.OPENING) == set(RULES) == set(ChannelState)
    assert {event for events in TRANSITIONS.values() for event in events} == set(ChannelEvent)
    assert all(event.meaning for event in ChannelEvent)


def test_an_error_of_the_disk_ends_every_state_that_lives() -> None:
    for state, (event, end) in itertools.product(LIVE, ENDS.items()):
        assert next_state(state, event) is end


def test_only_a_closed_topic_or_node_ends_what_ended() -> None:
    """The first I/O error is the last: no placement and no log makes it take messages again."""
    for state in ENDED:
        assert reached(state) == {state, ChannelState.CLOSED}, state


def test_the_placement_says_what_a_partition_with_a_sound_log_does() -> None:
    """But for a move that is on, and what is damaged or prepared: see below."""
    wanted = OWN | {
        ChannelEvent.PLACED_DELETED: ChannelState.DELETED,
        ChannelEvent.PLACED_TO_READ: ChannelState.READS,
        ChannelEvent.PLACED_ELSEWHERE: ChannelState.ELSEWHERE,
    }
    exempt = {ChannelState.SEALED, ChannelState.QUARANTINED, ChannelState.PREPARED}
    for state in set(LIVE) - exempt:
        assert {event: next_state(state, event) for event in PLACED} == wanted, state
    assert [next_state(ChannelState.PREPARED, event) for event in PLACED] == [
        ChannelState.PREPARED if event is ChannelEvent.PLACED_ELSEWHERE else wanted[event]
        for event in PLACED
    ]


def test_messages_are_taken_only_after_the_placement_says_so() -> None:
    """A log that is opened, unsealed or put in the place of another one takes none by itself."""
    for state in set(LIVE) - {ChannelState.WRITES}:
        assert ChannelState.WRITES not in reached(state, without=(ChannelEvent.PLACED_TO_WRITE,)), (
            state
        )


def test_a_log_that_is_not_whole_and_open_takes_no_messages() -> None:
    special = [ChannelState.UNSEALING, ChannelState.UNPREPARED, ChannelState.QUARANTINED]
    for state, (event, then) in itertools.product(OWN.values(), zip(LOGS, special, strict=True)):
        assert next_state(state, event) is then
        assert not RULES[then].append


def test_a_move_is_ended_by_its_end_alone() -> None:
    """Its source counts on the end of the log, so settings that change meanwhile do not matter."""
    for state in (*OWN.values(), ChannelState.UNSEALING):
        assert next_state(state, ChannelEvent.SEAL) is ChannelState.SEALED
    stays = {
        event
        for event, then in TRANSITIONS[ChannelState.SEALED].items()
        if then is ChannelState.SEALED
    }
    assert stays == {
        *OWN,
        ChannelEvent.PLACED_DELETED,
        ChannelEvent.SEAL_FOUND,
        ChannelEvent.SHORT_FOUND,
        ChannelEvent.SEAL,
        ChannelEvent.PUT_ASIDE,
    }
    assert next_state(ChannelState.SEALED, ChannelEvent.MOVE_OVER) is ChannelState.OPENING
    assert next_state(ChannelState.SEALED, ChannelEvent.PLACED_TO_READ) is ChannelState.READS
    assert next_state(ChannelState.SEALED, ChannelEvent.PLACED_ELSEWHERE) is ChannelState.ELSEWHERE
    for state in set(LIVE) - {ChannelState.SEALED, ChannelState.PREPARED}:
        assert (
            next_state(state, ChannelEvent.MOVE_OVER) is state
        )  # a version that changed, and no move


def test_damage_inside_a_log_ends_with_another_log_alone() -> None:
    """Neither the placement nor the end of a move makes it serve."""
    sources = {state for state in ChannelState if ChannelEvent.DAMAGE_FOUND in TRANSITIONS[state]}
    for state in sources - {ChannelState.PREPARED} - set(ENDED):
        assert next_state(state, ChannelEvent.DAMAGE_FOUND) is ChannelState.QUARANTINED
    another = (ChannelEvent.PUT_ASIDE, ChannelEvent.ADOPT)
    assert reached(ChannelState.QUARANTINED, without=another) == {ChannelState.QUARANTINED, *ENDED}
    assert next_state(ChannelState.QUARANTINED, ChannelEvent.PUT_ASIDE) is ChannelState.OPENING


def test_a_log_that_changes_is_looked_at_anew_where_it_is_to_take_appends() -> None:
    """Elsewhere it says nothing new."""
    assert {
        s: row[ChannelEvent.UNSEALED]
        for s, row in TRANSITIONS.items()
        if ChannelEvent.UNSEALED in row
    } == {ChannelState.UNSEALING: ChannelState.OPENING}
    aside = {
        s: row[ChannelEvent.PUT_ASIDE]
        for s, row in TRANSITIONS.items()
        if ChannelEvent.PUT_ASIDE in row
    }
    quiet = {ChannelState.READS, ChannelState.PREPARED, ChannelState.SEALED}
    assert {state for state, then in aside.items() if then is state} == quiet
    assert {state for state, then in aside.items() if then is ChannelState.OPENING} == {
        *OWN.values(),
        ChannelState.DELETED,
        ChannelState.UNPREPARED,
        ChannelState.UNSEALING,
        ChannelState.QUARANTINED,
    }
    for state, event in itertools.product(set(LIVE) - {*OWN.values()}, LOGS[:2]):
        assert TRANSITIONS[state].get(event, state) is state


def test_a_group_without_a_range_prepares_for_a_move_and_gives_it_up_when_it_ends() -> None:
    assert {
        s for s in ChannelState if TRANSITIONS[s].get(ChannelEvent.ADOPT) is ChannelState.PREPARED
    } == {
        ChannelState.ELSEWHERE,
        ChannelState.PREPARED,
        ChannelState.QUARANTINED,
    }
    assert next_state(ChannelState.PREPARED, ChannelEvent.MOVE_OVER) is ChannelState.ELSEWHERE


def test_a_placement_and_a_log_are_looked_at_in_every_state() -> None:
    """They come from outside at any time: the placement first, then the log, if one is open.

    Only a log of a range that takes the appends can be too short for it.
    """
    told = [event for event in ChannelEvent if event.startswith("placed_")]
    told += [
        ChannelEvent.MOVE_OVER,
        ChannelEvent.FAIL,
        ChannelEvent.OPEN_FAILED,
        ChannelEvent.CLOSE,
    ]
    for state in ChannelState:
        assert set(told) <= set(TRANSITIONS[state])
        for event in told[:5]:
            after = TRANSITIONS[state][event]
            log = {ChannelEvent.DAMAGE_FOUND}
            if after is not ChannelState.QUARANTINED:
                log.add(ChannelEvent.SEAL_FOUND)
                if event not in {ChannelEvent.PLACED_TO_READ, ChannelEvent.PLACED_ELSEWHERE}:
                    log.add(ChannelEvent.SHORT_FOUND)
            assert log <= set(TRANSITIONS[after]), (state, event)


def test_requests_are_allowed_where_their_events_are() -> None:
    for state, rules in RULES.items():
        assert rules.seal == (ChannelEvent.SEAL in TRANSITIONS[state]), state
        assert rules.adopt or ChannelEvent.ADOPT not in TRANSITIONS[state], state
        assert not (rules.seal and rules.adopt), "a group that takes the appends adopts nothing"
    assert [state for state, rules in RULES.items() if rules.append] == [ChannelState.WRITES]
    assert {state for state, rules in RULES.items() if not rules.read} == {
        ChannelState.UNREADABLE,
        ChannelState.CLOSED,
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
    assert placed(MINE, writable, "b1", holds_range=True) is ChannelEvent.PLACED_TO_WRITE
    assert placed(MINE, forbidden, "b1", holds_range=True) is ChannelEvent.PLACED_NOT_WRITABLE
    assert placed(read_only, forbidden, "b1", holds_range=True) is ChannelEvent.PLACED_READ_ONLY
    assert placed(MOVED, forbidden, "b1", holds_range=True) is ChannelEvent.PLACED_TO_READ
    assert placed(MINE, writable, "b2", holds_range=False) is ChannelEvent.PLACED_ELSEWHERE
    for each in (MINE, MOVED):
        deleted = dataclasses.replace(each, state=PartitionState.DELETED)
        assert placed(deleted, writable, "b1", holds_range=True) is ChannelEvent.PLACED_DELETED
        assert placed(deleted, writable, "b3", holds_range=False) is ChannelEvent.PLACED_ELSEWHERE


def test_what_is_special_about_a_log_is_named() -> None:
    """Damage counts before a seal, a seal before a log that is too short."""
    for short in (False, True):
        assert found(LogState.QUARANTINED, short=short) is ChannelEvent.DAMAGE_FOUND
        assert found(LogState.SEALED, short=short) is ChannelEvent.SEAL_FOUND
        assert found(LogState.FAILED, short=short) is None
    assert found(LogState.OK, short=True) is ChannelEvent.SHORT_FOUND
    assert found(LogState.OK, short=False) is None


def test_the_page_is_drawn_from_the_tables() -> None:
    module = load_tool("states")
    assert module.TARGET.read_text() == module.render(), "run `make docs`"
