"""How a node stands in its group: every state and every event, and what it may do in each."""

import itertools
import random

import pytest
from support.roles import leading, new_role
from support.tool import load_tool

from vq.broker.standing.node_state import (
    NODE_RULES,
    NODE_TRANSITIONS,
    NodeEvent,
    NodeState,
    next_node_state,
)
from vq.broker.standing.role import Role
from vq.errors import DiskFull, InternalError, NotMaster

WHY = NotMaster("another node leads")
LEADS = {NodeState.LEADS, NodeState.HANDS_OVER}


def reached(start: NodeState, without: set[NodeEvent]) -> set[NodeState]:
    """Every state that some events lead to from ``start``, none of them in ``without``."""
    found, new = {start}, [start]
    while new:
        for event, following in NODE_TRANSITIONS[new.pop()].items():
            if event not in without and following not in found:
                found.add(following)
                new.append(following)
    return found


def test_an_event_leads_on_where_the_table_has_it_and_is_a_bug_elsewhere() -> None:
    for state, event in itertools.product(NodeState, NodeEvent):
        if event in NODE_TRANSITIONS[state]:
            assert next_node_state(state, event) is NODE_TRANSITIONS[state][event]
            continue
        with pytest.raises(InternalError, match=f"{state} cannot take the event {event}"):
            next_node_state(state, event)


def test_every_state_is_reached_and_every_event_used() -> None:
    assert reached(NodeState.UNREGISTERED, set()) == set(NODE_RULES) == set(NodeState)
    assert {event for row in NODE_TRANSITIONS.values() for event in row} == set(NodeEvent)
    assert all(event.meaning for event in NodeEvent)


def test_nobody_leads_whose_epoch_is_not_stored() -> None:
    assert not LEADS & reached(NodeState.UNREGISTERED, {NodeEvent.STORED})


def test_who_was_replaced_leads_again_in_a_stored_epoch_of_its_own_alone() -> None:
    """Whatever else happens, and however often."""
    replaced = {NodeState.DEPOSED, NodeState.HANDED_OVER, NodeState.FOLLOWS, NodeState.WAITS}
    for state in replaced:
        assert not LEADS & reached(state, {NodeEvent.STORED}), state
    assert not {state for state in replaced if NODE_RULES[state].acts}


def test_another_master_ends_every_state() -> None:
    for state in NodeState:
        assert next_node_state(state, NodeEvent.FOLLOW) is NodeState.FOLLOWS


def test_puts_are_held_from_the_begin_of_a_hand_over_until_its_end() -> None:
    """Also while the other node leads already, and this one has not read whom to follow."""
    role = leading()
    role.hold()
    assert (role.puts, role.acts) == ("held", True)
    role.is_deposed(WHY)
    assert (role.puts, role.acts, role.deposed) == ("held", False, True)
    role.let_go()
    assert (role.puts, role.deposed) == ("refused", True)


def test_a_hand_over_without_success_changes_nothing() -> None:
    role = leading()
    role.hold()
    role.let_go()
    assert (role.state, role.refusal, role.puts) == (NodeState.LEADS, None, "taken")


def test_the_end_of_a_hand_over_does_not_bring_a_mastership_back() -> None:
    role = leading()
    role.hold()
    role.follow("n2", WHY)
    role.let_go()
    assert (role.state, role.epoch, role.follows) == (NodeState.FOLLOWS, 0, "n2")
    assert role.refusal is WHY


def test_a_master_whose_next_epoch_cannot_be_stored_goes_on_in_the_one_before() -> None:
    """It takes no messages; what it has acknowledged counts."""
    role = leading(3)
    role.claimed()
    assert role.puts == "taken"
    role.cannot_store(DiskFull("no space for epoch 4"))
    assert (role.epoch, role.acts, role.puts) == (3, True, "refused")
    assert role.problem == "no space for epoch 4"
    role.begins(4, ())
    role.leads()
    assert (role.epoch, role.problem, role.puts) == (4, "", "taken")


def test_what_a_full_disk_says_does_not_bring_a_mastership_back() -> None:
    role = leading(3)
    role.is_deposed(WHY)
    role.claimed()
    role.cannot_store(DiskFull("no space"))
    assert role.deposed
    assert not role.holds()
    role.begins(5, ())
    role.leads(WHY)
    assert role.deposed, "the record names another master by then"


def test_a_node_alone_needs_no_lease() -> None:
    """Nobody else can have been elected."""
    role = leading(3, {"n2"}, lease=lambda: False)
    assert not role.holds()
    role.counts(frozenset(), alone=True)
    assert role.holds()


def test_who_was_replaced_holds_nothing() -> None:
    """Whatever the clock says, and alone or not."""
    role = leading(3, {"n2"})
    role.counts(role.insync, alone=True)
    role.is_deposed(WHY)
    assert not role.holds()
    assert not role.goes_on


def test_no_clock_ends_what_the_copies_confirm() -> None:
    """A node in sync that is silent does, until it is back."""
    role = leading(3, {"n2"}, lease=lambda: False)
    assert role.goes_on
    role.silent = "n2"
    assert not role.goes_on


@pytest.mark.parametrize("seed", range(20))
def test_a_node_acts_in_epochs_that_rise_and_never_beside_a_refusal_of_all(seed: int) -> None:
    """Whatever happens in whatever order, as far as the table has it."""
    rng = random.Random(seed)
    role, epoch = new_role(), 0

    def lead(late: bool) -> None:
        nonlocal epoch
        epoch += 1
        role.begins(epoch, ())
        role.leads(WHY if late else None)

    happens = {
        NodeEvent.CLAIMED: role.claimed,
        NodeEvent.STORED: lambda: lead(False),
        NodeEvent.STORED_LATE: lambda: lead(True),
        NodeEvent.NOT_STORED: lambda: role.cannot_store(DiskFull("no space")),
        NodeEvent.DEPOSED: lambda: role.is_deposed(WHY),
        NodeEvent.HOLD: role.hold,
        NodeEvent.LET_GO: role.let_go,
        NodeEvent.FOLLOW: lambda: role.follow("n2", WHY),
        NodeEvent.WAIT: lambda: role.follow("n2", WHY, waits="it waits"),
    }
    for _ in range(200):
        happens[rng.choice(list(NODE_TRANSITIONS[role.state]))]()
        _check(role, epoch)


def _check(role: Role, epoch: int) -> None:
    assert role.epoch in (0, epoch)
    assert (role.refusal is None) == (role.state in LEADS)
    assert not (role.epoch and role.follows)
    assert not role.acts or role.epoch
    assert role.deposed == (role.epoch > 0 and not role.holds())


def test_the_page_of_reference_shows_the_tables() -> None:
    tool = load_tool("states")
    assert tool.NODE_TARGET.read_text() == tool.render_node(), "run make docs"
