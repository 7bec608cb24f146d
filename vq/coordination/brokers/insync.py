"""Decisions on a broker group's record: who may lead it, who joins and who leaves its in-sync set.

Plain values in and out: each function takes the record (``GroupState``) as it was read and
returns the one to write. The caller writes it by compare-and-set on the version that it read;
``leadership`` does that. No time takes part in any of these decisions.

- Only a node of the in-sync set leads. Every claim raises the epoch.
- Only the master of the record's epoch changes the set, one change after the other.
- A node leaves the set when the record says so, not before. It counts as a member from the moment
  at which its master intends to add it (``broker.partition.replica_rules.counted``).
- A join names the registration (incarnation) whose position the master knows. A node that
  registered again since may have lost what it had not flushed.
- A master hands over by naming its successor, one of the set. The successor claims the group as
  any other node does, and may do so while the master lives. Until then the offer can be withdrawn.
- A node that lost power leads again when the record names its present registration: then it has
  caught up after that start. A node that is in sync alone leads at once; nobody has more. If all
  others in sync are there and lost power, too, the one with the longest logs leads.
- A node that refuses messages for a full disk leads only if no other one can, as one that an
  operator drained. A master whose disk is full hands over.
- A node with damage in its logs does not claim the group either, as long as it has it. The master
  goes on when it finds damage, until it has handed over or its registration ends.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from vq.coordination.tree.values.brokers import NODES_LEFT_MAX, GroupState
from vq.errors import CoordinationError


class MastershipRefused(CoordinationError):
    """This node must not lead its group now; the message says why and what to do."""

    retriable = False


class MayLackMessages(MastershipRefused):
    """This node lost power or has damage, and another one in sync, for which it waits, may not."""


class ChangeRefused(CoordinationError):
    """The in-sync set must not be changed so; the message says why. Read the record again."""

    retriable = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """A registered node that wants to lead, or to join the in-sync set.

    Attributes:
        group: Its group.
        node: Its name.
        incarnation: Its registration.
        directory: Identity of its data directory; "": not known.
        lost_power: Since its last start a loss of power may have taken messages that it had
            written and not flushed, and others had counted on.
        damaged: It has damage in its logs that it has not repaired yet.
    """

    group: str
    node: str
    incarnation: int
    directory: str = ""
    lost_power: bool = False
    damaged: bool = False


def elected(
    state: GroupState | None,
    candidate: Candidate,
    *,
    master_is_alive: bool,
    others_lack: bool = False,
    longer: str = "",
    accept_data_loss: bool = False,
) -> GroupState:
    """Return the record with ``candidate`` as master in a new epoch.

    A master that hands over and resigns leaves the in-sync set with the claim of its successor.

    Args:
        state: The record; None: the group is new.
        candidate: Who claims the group.
        master_is_alive: Whether the master of the record is registered and leads, or may lead again
            (``keeps_leading``). It does not matter if that is the candidate's own name.
        others_lack: All other nodes in sync are registered and may lack something, too
            (``lacks_messages``).
        longer: Of these, the one with longer logs than the candidate; see ``longest``.
        accept_data_loss: Lead with another data directory than the one that was in sync, or after
            a loss of power or with damage that others in sync did not have.

    Raises:
        MastershipRefused: It may lack acknowledged messages, or another node leads.
        MayLackMessages: It may lead when others have come, or when it has them.
    """
    group, node = candidate.group, candidate.node
    if state is None:
        state = GroupState(epoch=0, master=node, insync=(node,), incarnations={})
    if node not in state.insync:
        raise MastershipRefused(
            f"node {node!r} is not in sync in group {group!r} "
            f"(in sync: {', '.join(state.insync)}), so it may lack acknowledged messages; "
            f"start {state.master!r}, or give this node a group of its own"
        )
    if not accept_data_loss:
        check_directory(state, candidate)
        _check_has_all(state, candidate, others_lack=others_lack, longer=longer)
    takes_over = state.successor == node
    if state.master != node and master_is_alive and not takes_over:
        raise MastershipRefused(
            f"group {group!r} is led by node {state.master!r}, which is alive; "
            "give this node a group of its own"
        )
    if takes_over and state.resigns:
        state = _without(state, state.master)
    return replace(
        _with(state, candidate),
        epoch=state.epoch + 1,
        master=node,
        successor="",
        resigns=False,
        unclean=False,
    )


def lacks_messages(
    state: GroupState, node: str, incarnation: int, *, lost_power: bool, damaged: bool = False
) -> bool:
    """Return whether a registered node may lack acknowledged messages.

    Args:
        state: The record.
        node: The node.
        incarnation: Its registration.
        lost_power: What it says in that registration, see ``Candidate``. It has caught up since if
            the record names the registration.
        damaged: What it says there now.
    """
    return damaged or (lost_power and state.incarnations.get(node) != incarnation)


def longest(ends: Mapping[str, int], node: str) -> str:
    """Return the node with the longest logs, if its logs are longer than those of ``node``; or "".

    Args:
        ends: Where the logs ended, added up, when nodes registered that lost power and have not
            caught up since.
        node: One of these; if it is not, nothing is known of it.
    """
    if node not in ends:
        return ""
    most = max(ends, key=lambda each: (ends[each], each == node, each))
    return "" if most == node else most


def keeps_leading(
    state: GroupState, incarnation: int, *, lost_power: bool, damaged: bool = False
) -> bool:
    """Return whether the registered master leads, or may claim the group again.

    A master that finds damage leads on, so that no send fails: it hands over. With another
    registration than the one that the record names it has to claim the group, as any other node.
    """
    master = state.master
    return state.incarnations.get(master) == incarnation or not lacks_messages(
        state, master, incarnation, lost_power=lost_power, damaged=damaged
    )


def follows(state: GroupState | None, node: str, *, master_is_alive: bool) -> bool:
    """Return whether a node that starts, or looks again, follows the master and claims nothing.

    It does while another node of its group leads (see ``elected``) and does not hand over to it. It
    also does if it is not in sync, whether that node lives or not: then it waits for it.
    """
    if state is None or node in {state.master, state.successor}:
        return False
    return master_is_alive or node not in state.insync


def named_uncleanly(
    state: GroupState, candidate: Candidate, *, able: Collection[str]
) -> GroupState:
    """Return the record in which an operator has ``candidate`` lead, whatever it lacks.

    The node then claims the group as any other one does. The epoch rises here, too: a master that
    lost touch changes nothing in between. What the candidate lacks is lost; nobody else of the old
    set is in sync any more, so none of them can bring it back later.

    Args:
        state: The record.
        candidate: A registered node.
        able: The nodes in sync that are registered and lack nothing (``lacks_messages``).

    Raises:
        MastershipRefused: One of these leads, or will.
    """
    if able:
        raise MastershipRefused(
            f"{', '.join(sorted(able))} of group {candidate.group!r} is in sync and registered, "
            "and has all acknowledged messages: it leads, or will in a moment. If its process "
            "hangs, end it, and wait until it is not registered any more"
        )
    node, directory, following = candidate.node, candidate.directory, state.epoch + 1
    return GroupState(
        epoch=following,
        master=node,
        insync=(node,),
        incarnations={},  # it has none in this set before it claims the group
        directories={node: directory} if directory else {},
        unclean=True,
        left=_remembered({*state.left, *state.insync} - {node}),
    )


def goes_first(
    state: GroupState | None,
    node: str,
    *,
    drained: Collection[str],
    able: Collection[str],
    full: Collection[str] = (),
) -> str:
    """Return the node that claims the group instead of ``node``; "": none.

    Args:
        state: The record.
        node: Which would claim the group.
        drained: See ``BrokerGroup``.
        able: Nodes that are registered and lack nothing after a loss of power.
        full: Nodes that refuse messages for a full disk.

    A node with a full disk, or a drained one, leads only if nobody else can: a group without a
    master helps no operator. If the record names it as master, nobody else may claim the group; it
    leads, and hands over.
    """
    if state is None or node in {state.master, state.successor}:
        return ""

    def rank(each: str) -> tuple[bool, bool]:
        return each in full, each in drained

    others = [each for each in state.insync if each in able and rank(each) < rank(node)]
    return min(others, key=rank, default="")


def check_directory(
    state: GroupState,
    candidate: Candidate,
    *,
    accept_data_loss: bool = False,
    alive: Collection[str] = (),
) -> None:
    """Check that the candidate has the data directory with which it was in sync.

    Args:
        state: The record.
        candidate: Who starts, or claims the group.
        accept_data_loss: It may have another directory, if nobody has the messages.
        alive: The nodes that are registered.

    Raises:
        MastershipRefused: It is another one, so acknowledged messages would be missing.
    """
    group, node = candidate.group, candidate.node
    known = state.directories.get(node, "")
    if known in {"", candidate.directory}:
        return
    others = [each for each in state.insync if each != node]
    having = [each for each in others if each in alive]
    if accept_data_loss and not having:
        return
    where = (
        f"the acknowledged messages of group {group!r} are in the data directory with id {known}; "
        f"this one has id {candidate.directory}: "
    )
    if having:
        raise MastershipRefused(
            f"{where}start node {node!r} with its old directory. If that is lost, wait until "
            f"`vq cluster status` shows another master ({', '.join(having)} has the messages) and "
            f"{node!r} not in sync; start this node then, without --accept-data-loss, and it "
            "copies them"
        )
    raise MastershipRefused(
        f"{where}start node {node!r} with its old directory"
        + (f", or {', '.join(others)}, which has them, too" if others else "")
        + ". If that is lost for good, --accept-data-loss goes on without its messages"
    )


def _check_has_all(
    state: GroupState, candidate: Candidate, *, others_lack: bool, longer: str
) -> None:
    node, damaged = candidate.node, candidate.damaged
    lacks = lacks_messages(
        state, node, candidate.incarnation, lost_power=candidate.lost_power, damaged=damaged
    )
    if not lacks or len(state.insync) == 1 or (others_lack and not longer):
        return
    others = longer if others_lack else ", ".join(each for each in state.insync if each != node)
    why = (
        "has damage in its logs that it has not repaired"
        if damaged
        else "was not stopped before its machine went down, or its start found logs damaged or torn"
    )
    raise MayLackMessages(
        f"node {node!r} of group {candidate.group!r} {why}, so it may lack acknowledged messages; "
        f"it waits for {others}, from which it copies them. If these are lost for good, start this "
        "node with --accept-data-loss: it goes on without the messages"
    )


def joined(
    state: GroupState, epoch: int, candidate: Candidate, *, incarnation_now: int | None
) -> GroupState:
    """Return the record with ``candidate`` in the in-sync set.

    Args:
        state: The record.
        epoch: In which the caller leads the group.
        candidate: The registration whose position the caller knows.
        incarnation_now: The registration that the node has; None: it is not registered. The caller
            has the compare-and-set fail if this changes meanwhile.

    Raises:
        ChangeRefused: The caller does not lead any more, or the node registered again.
    """
    _check_leads(state, epoch)
    if incarnation_now != candidate.incarnation:
        raise ChangeRefused(
            f"node {candidate.node!r} of group {candidate.group!r} joins with registration "
            f"{candidate.incarnation}, and has {incarnation_now or 'none'} now; it must catch up "
            "with its new registration first"
        )
    return _with(state, candidate)


def left(state: GroupState, epoch: int, node: str) -> GroupState:
    """Return the record without ``node`` in the in-sync set.

    Raises:
        ChangeRefused: The caller, which leads in ``epoch``, does not lead any more, or it is the
            master that would leave.
    """
    _check_leads(state, epoch)
    if node == state.master:
        raise ChangeRefused(f"node {node!r} leads in epoch {epoch} and cannot leave the set")
    if node == state.successor:
        state = replace(state, successor="", resigns=False)
    return _without(state, node)


def successor(
    state: GroupState,
    epoch: int,
    wanted: str,
    behind: Mapping[str, int],
    drained: Collection[str] = (),
    damaged: Collection[str] = (),
    full: Collection[str] = (),
) -> str:
    """Return the node to which the master hands over.

    Args:
        state: The record.
        epoch: In which the caller leads the group.
        wanted: By the operator; "": any.
        behind: Bytes that each node lacks whose registration is the one in the record.
        drained: Nodes that are to take over only if no other one can.
        damaged: Nodes with damage in their logs. One of them can take over only from a master
            that has damage, too.
        full: Nodes that refuse messages for a full disk. One of them takes over only if no other
            one can; if an operator wants it, only from a master that is full, too.

    Raises:
        ChangeRefused: No node in sync can take over, or not that one.
    """
    _check_leads(state, epoch)
    able = {node for node in state.insync if node != state.master and node in behind}
    if state.master not in damaged:
        able -= set(damaged)
    is_full = wanted in full and state.master not in full
    if wanted and (wanted not in able or wanted in drained or is_full):
        why = "is not registered, or registered again a moment ago"
        if wanted == state.master:
            why = "leads it already"
        elif wanted not in state.insync:
            why = "is not in sync"
        elif wanted in damaged:
            why = "has damage in its logs that it has not repaired"
        elif wanted in drained:
            why = "is drained"
        elif is_full:
            why = "refuses messages, its disk is full"
        raise ChangeRefused(
            f"node {wanted!r} cannot take over, it {why}; able: {', '.join(sorted(able)) or 'none'}"
        )
    if not able:
        raise ChangeRefused(
            "no other node is in sync, registered, without damage in its logs, with space on its "
            "disk and not drained; in sync: "
            + ", ".join(state.insync)
            + (f"; drained: {', '.join(drained)}" if drained else "")
        )
    return wanted or min(
        able,
        key=lambda node: (node in damaged, node in full, node in drained, behind[node], node),
    )


def offered(
    state: GroupState, epoch: int, heir: Candidate, *, incarnation_now: int | None, resigns: bool
) -> GroupState:
    """Return the record in which the master of ``epoch`` hands over to ``heir``.

    Args:
        state: The record.
        epoch: In which the caller leads the group.
        heir: The registration that has everything that the caller took.
        incarnation_now: The registration that the node has. The caller has the compare-and-set fail
            if this changes meanwhile.
        resigns: The caller leaves the in-sync set when the other one leads: it stops.

    Raises:
        ChangeRefused: The caller does not lead any more, or that node is not in sync.
    """
    _check_leads(state, epoch)
    node = heir.node
    if node == state.master or node not in state.insync:
        raise ChangeRefused(f"node {node!r} cannot take over from {state.master!r}: not in sync")
    if incarnation_now != heir.incarnation or incarnation_now != state.incarnations.get(node):
        raise ChangeRefused(
            f"node {node!r} cannot take over: it was in sync with registration "
            f"{state.incarnations.get(node)}, and has {incarnation_now or 'none'} now"
        )
    return replace(state, successor=node, resigns=resigns)


def withdrawn(state: GroupState, epoch: int) -> GroupState:
    """Return the record in which the master of ``epoch`` hands over to nobody.

    Raises:
        ChangeRefused: It does not lead any more: its successor does.
    """
    _check_leads(state, epoch)
    return replace(state, successor="", resigns=False)


def _without(state: GroupState, node: str) -> GroupState:
    return replace(
        state,
        insync=tuple(each for each in state.insync if each != node),
        incarnations={name: at for name, at in state.incarnations.items() if name != node},
        directories={name: at for name, at in state.directories.items() if name != node},
        left=_remembered({*state.left, node}),
    )


def _remembered(nodes: Collection[str]) -> tuple[str, ...]:
    return tuple(sorted(nodes)[-NODES_LEFT_MAX:])


def forgotten(state: GroupState, node: str) -> GroupState:
    """Return the record without what it knows of a node that left the set."""
    return replace(state, left=_remembered({*state.left} - {node}))


def _check_leads(state: GroupState, epoch: int) -> None:
    if state.epoch != epoch:
        raise ChangeRefused(
            f"the record is of epoch {state.epoch}, led by {state.master!r}; epoch {epoch} is over"
        )


def _with(state: GroupState, candidate: Candidate) -> GroupState:
    """Return the record with the candidate's registration in sync."""
    node, directory = candidate.node, candidate.directory
    return replace(
        state,
        insync=state.insync if node in state.insync else (*state.insync, node),
        incarnations={**state.incarnations, node: candidate.incarnation},
        directories={**state.directories, **({node: directory} if directory else {})},
        left=_remembered({*state.left} - {node}),
    )
