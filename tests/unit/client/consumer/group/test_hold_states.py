"""The table of a hold: every state with every event, what it promises, and its picture."""

from collections.abc import Iterable
from itertools import product
from pathlib import Path

import pytest

from vq.client.consumer.group.hold_states import (
    LEAVING,
    OWNED,
    TABLE,
    Event,
    ImpossibleEvent,
    State,
    after,
)
from vq.model import TopicPartition

DOCUMENT = Path(__file__).parents[5] / "ARCHITECTURE.md"
P0 = TopicPartition("orders", 0)
CONSUMED = {State.CHECKING, State.DELIVERING, State.STOPPED}


def reached(start: State, *, without: Iterable[Event] = ()) -> set[State]:
    """Every state that some events lead to from ``start``, none of them in ``without``."""
    found, new = {start}, [start]
    while new:
        for event, following in TABLE[new.pop()].items():
            if event not in without and following not in found:
                found.add(following)
                new.append(following)
    return found


def drawn() -> str:
    """The table as a Mermaid diagram: a line for each pair of states, with its events."""
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> free"]
    for state, events in TABLE.items():
        for following in dict.fromkeys(events.values()):
            names = ", ".join(event.value for event, then in events.items() if then is following)
            lines.append(f"    {state.name.lower()} --> {following.name.lower()}: {names}")
    return "\n".join([*lines, "```"])


def test_an_event_leads_on_where_the_table_has_it_and_is_a_bug_elsewhere() -> None:
    for state, event in product(State, Event):
        if event in TABLE[state]:
            assert after(state, event, P0) is TABLE[state][event]
            continue
        with pytest.raises(ImpossibleEvent) as caught:
            after(state, event, P0)
        told = caught.value
        assert (told.state, told.event, told.partition) == (state, event, P0)
        assert all(name in str(told) for name in (state.value, event.value, "orders-0"))


def test_every_state_is_reached_and_every_event_used() -> None:
    assert set(TABLE) == reached(State.FREE) == set(State)
    assert {event for events in TABLE.values() for event in events} == set(Event)


@pytest.mark.parametrize("state", list(State))
def test_every_partition_becomes_free_in_the_end(state: State) -> None:
    assert State.FREE in reached(state)


@pytest.mark.parametrize("state", sorted(CONSUMED, key=lambda state: state.name))
def test_nothing_is_released_before_it_is_drained(state: State) -> None:
    """But for a member that leaves for good: its listener did not return in time."""
    assert State.OWES_RELEASE not in reached(state, without={Event.DRAINED, Event.LEAVE})


@pytest.mark.parametrize("state", sorted(CONSUMED, key=lambda state: state.name))
def test_nothing_is_given_up_before_its_last_commit(state: State) -> None:
    found = reached(state, without={Event.COMMITTED, Event.LOSE, Event.LEAVE})
    assert State.OWES_COMMIT in found
    assert State.OWES_RELEASE not in found


def test_what_is_lost_is_never_committed_nor_delivered_before_it_is_claimed_anew() -> None:
    found = reached(State.LOST, without={Event.CLAIM})
    assert found == {State.LOST, State.OWES_RELEASE, State.FREE}
    assert all(Event.COMMITTED not in TABLE[state] for state in found)
    assert not found & OWNED


@pytest.mark.parametrize("state", sorted(LEAVING, key=lambda state: state.name))
def test_what_is_given_up_is_delivered_again_only_after_a_new_claim(state: State) -> None:
    found = reached(state, without={Event.CLAIM})
    assert not found & (CONSUMED | {State.STARTING, State.PAUSED})


def test_a_stopped_group_goes_on_by_no_event_of_its_partition() -> None:
    """A pause leads back to where it begins, and it is stopped there again."""
    assert Event.DELIVER not in TABLE[State.STOPPED]
    assert Event.CHECK not in TABLE[State.STOPPED]


def test_owned_is_everything_from_a_claim_to_its_end() -> None:
    assert reached(State.STARTING, without={Event.COMMITTED, Event.LEAVE, Event.LOSE}) == OWNED


def test_the_picture_is_drawn_from_the_table() -> None:
    document = DOCUMENT.read_text("utf-8")
    begin, end = "<!-- hold: drawn from the table -->\n", "\n<!-- end of hold -->"
    assert document.split(begin)[1].split(end)[0] == drawn(), f"put this there:\n{drawn()}"
