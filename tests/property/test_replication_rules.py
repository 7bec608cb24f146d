"""The rules of replication lose nothing, and every one of them is needed.

Goal: explore a model (``support.group_model``) in which the functions of the brokers decide, over
all orders of crashes, ends of sessions, elections, copies and changes of the set. With all
rules nothing breaks. Without any one of them, something that readers saw is lost, or two masters
show different entries at one offset.

There is no lease among the rules: a master may always go on that does not know that another one
leads, as it does while ZooKeeper is away for it. So what all nodes in sync confirm needs no lease.

With acknowledgements before the flush, ``min_insync`` page caches survive losses of power that come
one after the other. Two at once are a case of their own among those that lose something.
"""

from dataclasses import replace

import pytest
from support.group_model import Bounds, Node, Outcome, Rules, State, explore

from vq.coordination.brokers.insync import Candidate
from vq.coordination.tree.values.brokers import GroupState


def by_the_longest_log(state: State, number: int) -> bool:
    """Elect as if the longest log had everything."""
    lengths = [len(node.log) for node in state.nodes if node.up]
    return len(state.nodes[number].log) == max(lengths)


def at_the_end_of_the_master(own: Node, leader: Node) -> int:
    """Cut by length."""
    return len(leader.log)


def at_the_own_high_watermark(own: Node, leader: Node) -> int:
    """Cut what this node does not know to be committed (KIP-101)."""
    return own.high_watermark


def to_anybody(
    state: GroupState, epoch: int, heir: Candidate, *, resigns: bool, **_: object
) -> GroupState:
    """Hand over to a node that is not in sync, and call it so."""
    names = tuple(sorted({*state.insync, heir.node}))
    incarnations = {**state.incarnations, heir.node: heir.incarnation}
    return replace(
        state, insync=names, incarnations=incarnations, successor=heir.node, resigns=resigns
    )


def by_itself(state: GroupState, epoch: int) -> GroupState:
    """Go on as master, and leave the offer in the record."""
    return state


def never(**_: object) -> bool:
    """Count what is written, however few nodes are in sync."""
    return False


def at_the_high_watermark(flushed: int, *, high_watermark: int, epoch_start: int) -> bool:
    """Shrink when all that this master has committed is flushed."""
    return flushed >= high_watermark


#: What is explored, and the steps that are taken first.
Case = tuple[Rules, Bounds] | tuple[Rules, Bounds, tuple[str, ...]]

TWO = Bounds()
#: Messages count in the page caches of two nodes.
CACHED = Rules(fsync=False, min_insync=2)
#: Both nodes lose power, but not while the other one lacks something, as far as it is in sync.
APART = Bounds(messages=1, epochs=4, crashes=2, expiries=1, changes=2, apart=True)
#: The second node is not in sync when the first one is lost.
UNCLEAN = Bounds(messages=2, epochs=4, crashes=1, expiries=1, changes=1, insync=1, unclean=1)
#: Nobody is lost and no set changes: sessions end, and a master that does not know it goes on.
DEPOSED = Bounds(messages=2, epochs=3, crashes=0, expiries=2, changes=0, late=1)
THREE = Bounds(nodes=3, messages=1, epochs=3, crashes=1, expiries=1, changes=1)

#: Node 1 told the master of epoch 1 more than that of epoch 2 has, which cut both.
TOLD = (
    Bounds(nodes=3, messages=2, epochs=4, crashes=0, expiries=3, changes=0),
    (
        "0 appends (1, 2)",
        "1 copies from 0",
        "1 copies from 0",
        "session of 0 ends",
        "2 claims epoch 2",
        "1 follows 2, cut to 0",
        "0 learns that it does not lead",
        "0 registers again",
        "0 follows 2, cut to 0",
    ),
)

#: What the brokers rely on. Two cases with less of one kind each take half the time of one that has
#: all of them; that is in the long form.
KEPT: dict[str, Case] = {
    "two changes of master": (Rules(), *TOLD),
    "two nodes": (Rules(), Bounds(expiries=1, changes=1)),
    "two nodes, two changes of the set": (Rules(), Bounds(messages=1, expiries=1, changes=2)),
    "three nodes, one loses power": (Rules(), replace(THREE, changes=0)),
    "too few nodes acknowledge nothing, and show what they have": (
        Rules(min_insync=2),
        Bounds(messages=1, expiries=1, changes=2),
    ),
    "acknowledged before the flush": (CACHED, Bounds(messages=1, expiries=1, changes=2)),
    "acknowledged before the flush, three nodes": (
        CACHED,
        Bounds(nodes=3, messages=1, epochs=2, crashes=1, expiries=0, changes=1),
    ),
    "a planned hand-over": (
        Rules(),
        Bounds(messages=2, epochs=2, crashes=0, expiries=1, changes=1, hand_overs=1),
    ),
    "a planned hand-over, and a node loses power": (
        Rules(),
        Bounds(messages=1, epochs=2, crashes=1, expiries=1, changes=1, hand_overs=1),
    ),
    "a hand-over of a master that stops": (
        Rules(resigns=True),
        Bounds(messages=1, epochs=3, crashes=1, expiries=1, changes=1, hand_overs=1),
    ),
    "an operator has a node lead that lacks something": (Rules(), UNCLEAN),
}
KEPT_LONG: dict[str, Case] = {
    "three nodes, two changes of the set": (Rules(), replace(THREE, crashes=0, changes=2)),
    "too few nodes acknowledge nothing, and show what they have": (
        Rules(min_insync=2),
        Bounds(messages=2, expiries=1, changes=2),
    ),
    "two nodes": (Rules(), Bounds(epochs=4, crashes=2, expiries=2, changes=2)),
    "three nodes": (
        Rules(),
        Bounds(nodes=3, messages=1, epochs=3, crashes=1, expiries=2, changes=1),
    ),
    "acknowledged before the flush": (CACHED, Bounds(expiries=1, changes=2)),
    "acknowledged before the flush, two losses of power": (
        CACHED,
        Bounds(messages=2, epochs=4, crashes=2, expiries=1, changes=2, apart=True),
    ),
    "acknowledged before the flush, three losses of power": (
        CACHED,
        Bounds(messages=1, epochs=5, crashes=3, expiries=1, changes=3, apart=True),
    ),
    "acknowledged before the flush, three nodes": (
        CACHED,
        Bounds(nodes=3, messages=1, epochs=3, crashes=1, expiries=1, changes=2),
    ),
    "acknowledged before the flush, three nodes, two losses of power": (
        CACHED,
        Bounds(nodes=3, messages=1, epochs=3, crashes=2, expiries=0, changes=2, apart=True),
    ),
    "acknowledged before the flush, by a master that stops": (
        replace(CACHED, resigns=True),
        Bounds(messages=1, epochs=4, crashes=2, expiries=1, changes=1, hand_overs=1, apart=True),
    ),
    "a planned hand-over": (
        Rules(),
        Bounds(messages=2, epochs=4, crashes=1, expiries=1, changes=1, hand_overs=2),
    ),
    "a hand-over among three nodes": (
        Rules(),
        Bounds(
            nodes=3, messages=1, epochs=3, crashes=1, expiries=0, changes=1, hand_overs=1, insync=2
        ),
    ),
    "a hand-over of a master that stops": (
        Rules(resigns=True),
        Bounds(messages=2, epochs=4, crashes=1, expiries=1, changes=2, hand_overs=2),
    ),
    "three nodes, and a master hears late what its copy says": (
        Rules(),
        Bounds(nodes=3, messages=1, epochs=4, crashes=0, expiries=3, changes=0, late=1),
    ),
}
OVER = Bounds(messages=2, epochs=2, crashes=0, expiries=0, changes=0, hand_overs=1)

#: No more happens than the history that breaks needs: each step more costs ten times the states.
ONE_LOSS = Bounds(messages=1, epochs=2, crashes=1, expiries=0, changes=1)
ONE_OF_EACH = Bounds(messages=1, epochs=3, crashes=1, expiries=1, changes=1)
TWO_MASTERS = Bounds(crashes=0, changes=0)

#: One rule left out each time.
BROKEN: dict[str, Case] = {
    "acknowledged by the master alone": (
        Rules(committed=lambda positions, *_, **__: max(positions.values())),
        TWO,
    ),
    "anybody is elected": (Rules(electable=lambda *_: True), TWO),
    "the longest log is elected": (Rules(electable=by_the_longest_log), TWO),
    "a node leaves before that is agreed": (Rules(leave_early=True), TWO),
    "a node that joins counts once that is agreed": (
        Rules(counted=lambda insync, _: frozenset(insync)),
        Bounds(messages=1, epochs=2, crashes=0, expiries=1, changes=2),
    ),
    "an older epoch is not refused": (Rules(accepts=lambda *_: True), ONE_OF_EACH),
    "an older epoch is not refused by a process that starts": (
        Rules(forgets_epoch=True),
        ONE_OF_EACH,
    ),
    "no log is cut": (Rules(cut=lambda own, _: len(own.log)), TWO_MASTERS),
    "a log is cut at the end of the master's": (Rules(cut=at_the_end_of_the_master), TWO_MASTERS),
    "a log is cut at its own high watermark": (Rules(cut=at_the_own_high_watermark), ONE_OF_EACH),
    "a wait goes on in the next epoch": (Rules(epoch_of_waiting=False), Bounds(crashes=0)),
    "what the others told counts in a later epoch": (
        Rules(epoch_of_positions=False),
        *TOLD,
    ),
    "one copy in the page cache is enough": (Rules(fsync=False), TWO),
    "a node that lost power is elected": (
        replace(CACHED, ignores_lost_power=True),
        replace(ONE_LOSS, nodes=3, changes=0),
    ),
    "two nodes lose power at once": (CACHED, replace(APART, apart=False)),
    "the set shrinks below min_insync, and nothing is flushed": (
        replace(CACHED, counts_flushed=never),
        TWO,
    ),
    "the set shrinks before the flush": (
        replace(CACHED, may_shrink=lambda *_, **__: True),
        ONE_LOSS,
    ),
    "a master flushes before it shrinks the set, and counts what it writes meanwhile": (
        replace(CACHED, counts_written_meanwhile=True),
        ONE_LOSS,
    ),
    "a master does not flush what another one committed": (
        replace(CACHED, may_shrink=at_the_high_watermark),
        ONE_OF_EACH,
    ),
    "a removal of unknown outcome is given up": (replace(CACHED, gives_up_unknown=True), ONE_LOSS),
    "a master resigns below min_insync": (
        replace(CACHED, resigns=True, resigns_always=True),
        Bounds(messages=1, expiries=1, changes=1, hand_overs=1),
    ),
    "a node takes over before it has everything": (Rules(may_offer=lambda *_, **__: True), OVER),
    "a master takes messages while it hands over": (Rules(pauses=False), OVER),
    "a master goes on and does not withdraw its offer": (Rules(withdrawn=by_itself), OVER),
    "a node that is not in sync takes over": (
        Rules(offered=to_anybody, may_offer=lambda *_, **__: True),
        Bounds(messages=1, epochs=2, crashes=0, expiries=0, changes=1, hand_overs=1, insync=1),
    ),
    "no log is cut after an unclean election": (Rules(cut=lambda own, _: len(own.log)), UNCLEAN),
    "processes in sync go on at an unclean election": (
        Rules(unclean_beside_processes=True),
        UNCLEAN,
    ),
}
#: These take most states; each of the rules above is found to be needed in less than a second.
BROKEN_LONG: dict[str, Case] = {
    "two changes are under way": (
        Rules(changes_at_once=2),
        Bounds(nodes=3, messages=1, epochs=2, crashes=0, expiries=1, changes=2),
    ),
    "a node joins at the high watermark": (
        Rules(may_join=lambda position, *, high_watermark, **_: position >= high_watermark),
        Bounds(nodes=3, messages=1, epochs=3, crashes=0, expiries=2, changes=1, insync=2),
    ),
    "what a copy said of another master's log counts": (
        Rules(names_epoch=False),
        Bounds(nodes=3, messages=1, epochs=4, crashes=0, expiries=3, changes=0, late=1),
    ),
    "a join of before clears a loss of power": (
        replace(CACHED, forgets_lost_power=True),
        Bounds(nodes=3, messages=1, epochs=3, crashes=1, expiries=1, changes=2),
    ),
}


def nothing_breaks(rules: Rules, bounds: Bounds, begin: tuple[str, ...] = ()) -> Outcome:
    outcome = explore(rules, bounds, begin)
    assert outcome.violation == "", "\n".join(outcome.way)
    assert outcome.states > 10_000  # something was explored
    return outcome


def something_breaks(rules: Rules, bounds: Bounds, begin: tuple[str, ...] = ()) -> None:
    outcome = explore(rules, bounds, begin)
    print(f"{outcome.states} states", *outcome.way, outcome.violation, sep="\n")
    assert outcome.violation


@pytest.mark.slow
@pytest.mark.parametrize("name", KEPT)
def test_nothing_that_was_shown_is_lost(name: str) -> None:
    nothing_breaks(*KEPT[name])


@pytest.mark.slow
def test_a_master_acknowledges_rightly_after_another_one_was_elected() -> None:
    """No clock keeps it from that: all of the set confirmed it before, its successor, too.

    Neither does it harm that the master hears late what its copy says.
    """
    assert nothing_breaks(Rules(), DEPOSED).deposed > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN)
def test_every_rule_is_needed(name: str) -> None:
    something_breaks(*BROKEN[name])


@pytest.mark.long
@pytest.mark.parametrize("name", KEPT_LONG)
def test_nothing_that_was_shown_is_lost_in_longer_histories(name: str) -> None:
    nothing_breaks(*KEPT_LONG[name])


@pytest.mark.long
@pytest.mark.parametrize("name", BROKEN_LONG)
def test_every_rule_is_needed_in_longer_histories(name: str) -> None:
    something_breaks(*BROKEN_LONG[name])
