"""How a node stands in its group, what changes that, and what each state allows.

In here: the table of transitions and the table of rules. Not in here: any I/O, and the epochs and
nodes that a state is about: ``role`` has them, and asks this module for the next state;
``docs/reference/node-states.md`` is drawn from both tables.

How far the end of the process is stands beside this (``gate.Stage``): a node that stops may lead
until another one does.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from vq.broker.base.events import StateEvent
from vq.errors import InternalError


class NodeState(StrEnum):
    """How a node stands in its group; ``NODE_RULES`` says what each means and allows."""

    UNREGISTERED = "unregistered"
    CLAIMS = "claims"
    LEADS = "leads"
    HANDS_OVER = "hands_over"
    HANDED_OVER = "handed_over"
    DEPOSED = "deposed"
    UNSTORED = "unstored"
    FOLLOWS = "follows"
    WAITS = "waits"


class NodeEvent(StateEvent):
    """What happens to a node."""

    CLAIMED = "claimed", "the group's record names this node as master, in a new epoch"
    STORED = "stored", "the epoch of that claim is stored"
    STORED_LATE = "stored_late", "the epoch is stored, but the record names another master by now"
    NOT_STORED = "not_stored", "an epoch cannot be stored; it is tried again"
    DEPOSED = "deposed", "the record, or a node that copied from this one, has a newer epoch"
    HOLD = "hold", "a hand-over has a successor; PUTs are held"
    LET_GO = "let_go", "the hand-over is over, whatever came of it"
    FOLLOW = "follow", "the record names another node as master"
    WAIT = "wait", "nobody leads, and another node is to lead before this one"


_CLAIM: Final = {NodeEvent.CLAIMED: NodeState.CLAIMS}
_TAKEN: Final = {
    NodeEvent.STORED: NodeState.LEADS,
    NodeEvent.STORED_LATE: NodeState.DEPOSED,
    NodeEvent.NOT_STORED: NodeState.UNSTORED,
}
_OTHERS: Final = {NodeEvent.FOLLOW: NodeState.FOLLOWS, NodeEvent.WAIT: NodeState.WAITS}


def _stays(state: NodeState, *events: NodeEvent) -> dict[NodeEvent, NodeState]:
    return dict.fromkeys(events, state)


def _leads_not(state: NodeState) -> dict[NodeEvent, NodeState]:
    """Return what a hand-over changes where the node does not lead, or not any more: nothing."""
    return _stays(state, NodeEvent.HOLD, NodeEvent.LET_GO)


#: The next state. An event that is missing in a row must not happen in that state.
NODE_TRANSITIONS: Final[dict[NodeState, dict[NodeEvent, NodeState]]] = {
    NodeState.UNREGISTERED: _CLAIM | _OTHERS,
    NodeState.CLAIMS: _stays(NodeState.CLAIMS, NodeEvent.CLAIMED)
    | _TAKEN
    | {NodeEvent.DEPOSED: NodeState.DEPOSED}
    | _OTHERS
    | _leads_not(NodeState.CLAIMS),
    # A node with a new registration claims the group again. Until then it acts in its old epoch.
    NodeState.LEADS: _stays(NodeState.LEADS, NodeEvent.CLAIMED, NodeEvent.LET_GO)
    | _TAKEN
    | {NodeEvent.DEPOSED: NodeState.DEPOSED, NodeEvent.HOLD: NodeState.HANDS_OVER}
    | _OTHERS,
    NodeState.HANDS_OVER: _stays(NodeState.HANDS_OVER, NodeEvent.CLAIMED, NodeEvent.HOLD)
    | _TAKEN
    | {NodeEvent.DEPOSED: NodeState.HANDED_OVER, NodeEvent.LET_GO: NodeState.LEADS}
    | _OTHERS,
    NodeState.HANDED_OVER: _stays(NodeState.HANDED_OVER, NodeEvent.CLAIMED, NodeEvent.HOLD)
    | _stays(NodeState.HANDED_OVER, NodeEvent.NOT_STORED, NodeEvent.DEPOSED)
    | {NodeEvent.STORED: NodeState.LEADS, NodeEvent.STORED_LATE: NodeState.DEPOSED}
    | {NodeEvent.LET_GO: NodeState.DEPOSED}
    | _OTHERS,
    # Only a newer epoch of its own, stored, has it act again.
    NodeState.DEPOSED: _stays(NodeState.DEPOSED, NodeEvent.CLAIMED, NodeEvent.NOT_STORED)
    | _stays(NodeState.DEPOSED, NodeEvent.STORED_LATE, NodeEvent.DEPOSED)
    | {NodeEvent.STORED: NodeState.LEADS}
    | _OTHERS
    | _leads_not(NodeState.DEPOSED),
    NodeState.UNSTORED: _stays(NodeState.UNSTORED, NodeEvent.CLAIMED)
    | _TAKEN
    | {NodeEvent.DEPOSED: NodeState.DEPOSED}
    | _OTHERS
    | _leads_not(NodeState.UNSTORED),
    NodeState.FOLLOWS: _CLAIM
    | {NodeEvent.NOT_STORED: NodeState.UNSTORED}
    | _OTHERS
    | _leads_not(NodeState.FOLLOWS),
    NodeState.WAITS: _CLAIM
    | {NodeEvent.NOT_STORED: NodeState.UNSTORED}
    | _OTHERS
    | _leads_not(NodeState.WAITS),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRules:
    """What a state means and allows.

    Attributes:
        meaning: One sentence for the page of reference.
        acts: What this node confirms counts, in the epoch that it has, as long as its lease or its
            copies say so.
        puts: What becomes of a PUT: it is ``taken``, ``held`` or ``refused``.
    """

    meaning: str
    acts: bool = False
    puts: str = "refused"


NODE_RULES: Final[dict[NodeState, NodeRules]] = {
    NodeState.UNREGISTERED: NodeRules(meaning="The group does not know this process yet."),
    NodeState.CLAIMS: NodeRules(
        meaning="The record names this node as master; its epoch is not stored here yet."
    ),
    NodeState.LEADS: NodeRules(
        meaning="This node is the master of its group.", acts=True, puts="taken"
    ),
    NodeState.HANDS_OVER: NodeRules(
        meaning="It is, and another node in sync is about to take over.", acts=True, puts="held"
    ),
    NodeState.HANDED_OVER: NodeRules(
        meaning="The other node leads; the record is not read yet.", puts="held"
    ),
    NodeState.DEPOSED: NodeRules(
        meaning="Another node leads, or another process under this name; whom to follow is not "
        "known yet."
    ),
    NodeState.UNSTORED: NodeRules(
        meaning="A newer epoch cannot be stored; a master goes on in the one before, and takes no "
        "messages.",
        acts=True,
    ),
    NodeState.FOLLOWS: NodeRules(meaning="Another node leads; this one copies from it."),
    NodeState.WAITS: NodeRules(
        meaning="Nobody leads, and this node, which is in sync, waits for another one."
    ),
}


def next_node_state(state: NodeState, event: NodeEvent) -> NodeState:
    """Return the state that follows ``state`` when ``event`` happens.

    Raises:
        InternalError: The event must not happen in that state.
    """
    following = NODE_TRANSITIONS[state].get(event)
    if following is None:
        raise InternalError(f"a node that {state} cannot take the event {event}")
    return following
