"""A small model of one broker group and one partition, explored over all orders of events.

The model decides by the functions that brokers use (``vq.coordination.brokers.insync``,
``vq.broker.partition.replica_rules``), unless a variant replaces one of them by a wrong rule. A
state is a tuple of plain values; ``explore`` visits every state that can be reached, breadth first,
so a violation comes with a shortest way to it.

Entries of the log are ``(epoch, number)``. What the model checks in every state:

- Two nodes, whether they still lead or only believe so, never show readers different entries at
  one offset.
- The node that leads by the record has every entry that was ever shown to readers. An entry is
  acknowledged when it is shown, by the master that took it.
- A node that leads because the master handed over to it has all that this master took. (Without
  that, no message is lost, but sends that the old master took would have to be sent again.)

A request for a copy and its answer are one step, but for what a copy says of its log: that may
come late (``Bounds.late``). An answer of ZooKeeper may be lost (the writer learns of its change
later, or not at all). No rule has a lease: a master that ZooKeeper gave up long ago goes on until
it learns so, which may be never. While ZooKeeper is away, there are just no steps of it. Bounds
are small: see ``Bounds``.
"""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from vq.broker.partition import replica_rules
from vq.coordination.brokers import insync
from vq.coordination.brokers.insync import Candidate, ChangeRefused, MastershipRefused
from vq.coordination.tree.values.brokers import GroupState
from vq.store.log.lookup import EpochEnd

GROUP = "g"

Entry = tuple[int, int]


class Record(NamedTuple):
    """The group's record in ZooKeeper, hashable; see ``GroupState``."""

    epoch: int
    master: int
    insync: tuple[int, ...]
    incarnations: tuple[tuple[int, int], ...]
    successor: int = -1
    resigns: bool = False

    def state(self) -> GroupState:
        """Return it as brokers know it."""
        return GroupState(
            epoch=self.epoch,
            master=str(self.master),
            insync=tuple(str(node) for node in self.insync),
            incarnations={str(node): at for node, at in self.incarnations},
            successor="" if self.successor < 0 else str(self.successor),
            resigns=self.resigns,
        )

    @classmethod
    def of(cls, state: GroupState) -> "Record":
        """Return a record of brokers as one of the model."""
        return cls(
            state.epoch,
            int(state.master),
            tuple(sorted(int(node) for node in state.insync)),
            tuple(sorted((int(node), at) for node, at in state.incarnations.items())),
            int(state.successor) if state.successor else -1,
            state.resigns,
        )


class Change(NamedTuple):
    """A change of the in-sync set that a master intends, or has asked ZooKeeper for."""

    join: bool
    node: int
    incarnation: int
    insync: tuple[int, ...]  # as the set shall be
    flushed: bool  # or needs no flush before ZooKeeper is asked
    done: bool = False  # ZooKeeper has it, and the master does not know yet


class Lead(NamedTuple):
    """What a node that leads, or believes so, knows."""

    epoch: int
    start: int  # where its log ended when it began
    insync: tuple[int, ...]  # as last agreed
    changes: tuple[Change, ...]
    positions: tuple[int, ...]  # of each node; -1: not known in this epoch
    incarnations: tuple[int, ...]  # of each node, which reported the position
    hands_over: int = -1  # to this node; it takes no messages then


class Word(NamedTuple):
    """What a copy says of its log, and its master has not heard yet."""

    copy: int
    master: int
    epoch: int  # of the master from which it was copied
    incarnation: int
    position: int


class Node(NamedTuple):
    """One node."""

    up: bool
    incarnation: int  # its last registration, as it believes
    log: tuple[Entry, ...]
    synced: int  # entries that survive a loss of power
    lost_power: bool  # and the record did not name its registration since
    seen: int  # highest epoch stored
    follows: int  # epoch of the master whose log this one was compared with; 0: none yet
    high_watermark: int
    lead: Lead | None
    waiting: tuple[tuple[int, Entry], ...] = ()  # see ``Rules.epoch_of_waiting``
    told: tuple[int, ...] = ()  # see ``Rules.epoch_of_positions``


class State(NamedTuple):
    """Everything."""

    record: Record
    alive: tuple[int, ...]  # the registration of each node in ZooKeeper; 0: none
    nodes: tuple[Node, ...]
    shown: tuple[Entry, ...]  # to readers, by anybody, ever
    acked: frozenset[tuple[int, Entry]]
    messages: int
    crashes: int
    expiries: int
    changes: int
    hand_overs: int = 0
    handed: tuple[int, int] | None = None  # the old master, and its epoch
    unclean: int = 0
    late: int = 0
    words: tuple[Word, ...] = ()


@dataclass(frozen=True)
class Bounds:
    """How much may happen in one history.

    Attributes:
        nodes: Replicas.
        messages: Appends.
        epochs: The highest epoch.
        crashes: Losses of power: a process ends, and what was not flushed is gone.
        expiries: Ends of sessions, of nodes that run and of nodes that do not.
        changes: Changes of the in-sync set that masters intend.
        hand_overs: Times that a master begins to hand over.
        insync: Nodes in sync at the beginning; 0: all.
        unclean: Unclean elections. What the node then lacks counts as lost, and not as shown.
        apart: No node loses power while another one in sync lacks something after such a loss.
        late: Times that the word of a copy comes late.
    """

    nodes: int = 2
    messages: int = 2
    epochs: int = 3
    crashes: int = 1
    expiries: int = 2
    changes: int = 3
    hand_overs: int = 0
    insync: int = 0
    unclean: int = 0
    apart: bool = False
    late: int = 0


def cut_at_common_end(own: Node, leader: Node) -> int:
    """Return where ``own`` is cut when it follows a newer master, by the brokers' rule."""
    if not own.log:
        return 0
    end = replica_rules.common_end(
        own.log[-1][0],
        lambda epoch: _epoch_end(own.log, epoch),
        lambda epoch: _epoch_end(leader.log, epoch),
    )
    return 0 if end is None else end


def _epoch_end(log: tuple[Entry, ...], epoch: int) -> EpochEnd | None:
    """Return what ``LogReader.epoch_end`` does."""
    if not log:
        return EpochEnd(0, 0)
    upto = [index for index, entry in enumerate(log) if entry[0] <= epoch]
    return EpochEnd(log[upto[-1]][0], upto[-1] + 1) if upto else None


@dataclass(frozen=True)
class Rules:
    """What a variant decides; the defaults are the brokers' rules.

    Attributes:
        fsync: Positions are what is flushed, not what is written.
        min_insync: See ``replica_rules.acknowledges``.
        counts_flushed: See ``replica_rules.counts_flushed``.
        may_shrink: See ``replica_rules.may_shrink``.
        counts_written_meanwhile: A master that shrinks the set counts what it has written until the
            change is agreed.
        gives_up_unknown: A removal of which ZooKeeper's answer was lost is not tried again.
        resigns_always: Also below ``min_insync``.
        counted: See ``replica_rules.counted``.
        committed: See ``replica_rules.committed``.
        accepts: See ``replica_rules.accepts``.
        forgets_epoch: What a node compares with in ``accepts`` ends with its process.
        names_epoch: The word of a copy counts in the epoch alone in which it copied.
        may_join: See ``replica_rules.may_join``.
        cut: Where a log is cut that follows a newer master.
        changes_at_once: Changes of the set that may be under way.
        leave_early: A node that is to leave does not count from the intention on.
        electable: Who may lead; None: ``insync.elected`` decides.
        ignores_lost_power: A node claims without a word of a loss of power.
        forgets_lost_power: The record clears the loss when it names any registration of the node.
        names_incarnation: A join names the registration.
        epoch_of_waiting: A waiting acknowledgement ends with the epoch in which it began.
        epoch_of_positions: What the others told a master ends with the epoch in which they did.
        offered: See ``insync.offered``.
        withdrawn: See ``insync.withdrawn``.
        may_offer: See ``replica_rules.may_offer``.
        pauses: A master that hands over takes no messages.
        resigns: Whether masters resign that hand over.
        unclean_beside_processes: The processes of the nodes in sync need not have ended at an
            unclean election.
    """

    fsync: bool = True
    min_insync: int = 1
    counts_flushed: Callable[..., bool] = replica_rules.counts_flushed
    may_shrink: Callable[..., bool] = replica_rules.may_shrink
    counts_written_meanwhile: bool = False
    gives_up_unknown: bool = False
    resigns_always: bool = False
    counted: Callable[..., frozenset[str]] = replica_rules.counted
    committed: Callable[..., int | None] = replica_rules.committed
    accepts: Callable[[int, int], bool] = replica_rules.accepts
    forgets_epoch: bool = False
    names_epoch: bool = True
    may_join: Callable[..., bool] = replica_rules.may_join
    cut: Callable[[Node, Node], int] = cut_at_common_end
    changes_at_once: int = 1
    leave_early: bool = False
    electable: Callable[[State, int], bool] | None = None
    ignores_lost_power: bool = False
    forgets_lost_power: bool = False
    names_incarnation: bool = True
    epoch_of_waiting: bool = True
    epoch_of_positions: bool = True
    offered: Callable[..., GroupState] = insync.offered
    withdrawn: Callable[[GroupState, int], GroupState] = insync.withdrawn
    may_offer: Callable[..., bool] = replica_rules.may_offer
    pauses: bool = True
    resigns: bool = False
    unclean_beside_processes: bool = False


@dataclass
class Outcome:
    """What an exploration found.

    Attributes:
        states: How many states were visited.
        violation: What broke; "": nothing.
        way: The steps that lead to it.
        deposed: Steps in which a master acknowledged something while another one led already.
    """

    states: int
    violation: str = ""
    way: list[str] = field(default_factory=list)
    deposed: int = 0


def explore(rules: Rules, bounds: Bounds, begin: Sequence[str] = ()) -> Outcome:
    """Visit every state within the bounds, breadth first; stop at the first violation.

    ``begin``: steps that are taken first, so that longer histories are within reach.

    A visited state is kept as its hash of 64 bits. Of five million states, two share one with a
    probability below 1e-6; then what follows the second is not visited.
    """
    model = Model(rules, bounds)
    first = model.first()
    for step in begin:
        first = dict(model.steps(first))[step]
    gc.disable()  # no state has a cycle, and each pass would look at a hundred thousand of them
    try:
        return _explored(model, first)
    finally:
        gc.enable()


def _explored(model: "Model", first: State) -> Outcome:
    came_from: dict[int, tuple[int, str] | None] = {hash(first): None}
    front = [(hash(first), first)]
    deposed = 0
    while front:
        behind: list[tuple[int, State]] = []
        for at, state in front:
            for step, following in model.steps(state):
                key = hash(following)
                deposed += model.acknowledges_deposed(state, following)
                if key in came_from:
                    continue
                came_from[key] = (at, step)
                violation = model.violation(following)
                if violation:
                    return Outcome(len(came_from), violation, _way(came_from, key))
                behind.append((key, following))
        front = behind
    return Outcome(len(came_from), deposed=deposed)


def _way(came_from: Mapping[int, tuple[int, str] | None], key: int) -> list[str]:
    way: list[str] = []
    while (before := came_from[key]) is not None:
        key, step = before
        way.append(step)
    return way[::-1]


class Model:
    """The steps of a group under some rules."""

    def __init__(self, rules: Rules, bounds: Bounds) -> None:
        self.rules = rules
        self.bounds = bounds
        self._elected = lru_cache(maxsize=None)(_elected)
        self._settled = lru_cache(maxsize=None)(self._settle_node)

    def first(self) -> State:
        """Return the state at the beginning: node 0 leads in epoch 1, the others follow."""
        count = self.bounds.nodes
        insync_now = tuple(range(self.bounds.insync or count))
        lead = Lead(1, 0, insync_now, (), (0,) * count, (1,) * count)
        node = Node(True, 1, (), 0, False, 1, 1, 0, None)
        return State(
            Record(1, 0, insync_now, tuple((each, 1) for each in insync_now)),
            (1,) * count,
            (node._replace(lead=lead), *[node] * (count - 1)),
            (),
            frozenset(),
            self.bounds.messages,
            self.bounds.crashes,
            self.bounds.expiries,
            self.bounds.changes,
            self.bounds.hand_overs,
            unclean=self.bounds.unclean,
            late=self.bounds.late,
        )

    # What must hold -----------------------------------------------------------------------------
    def violation(self, state: State) -> str:
        """Return what is broken in a state, "" if nothing is."""
        if any(entry is None for entry in state.shown):
            return "two masters show different entries at one offset"
        master = state.nodes[state.record.master]
        lead = master.lead
        if lead is None or lead.epoch != state.record.epoch:
            return ""
        if master.log[: len(state.shown)] != state.shown:
            return f"node {state.record.master} leads and lacks what was shown"
        if state.handed is not None and lead.epoch == state.handed[1] + 1:
            old = state.nodes[state.handed[0]]
            took = old.lead is not None and old.lead.epoch == state.handed[1]
            if took and master.log[: len(old.log)] != old.log:
                return f"node {state.record.master} took over and lacks what the last master took"
        for index, entry in state.acked:
            if master.log[index : index + 1] != (entry,):
                return f"node {state.record.master} leads and lacks what was acknowledged"
        return ""

    @staticmethod
    def acknowledges_deposed(before: State, after: State) -> bool:
        """Whether a step acknowledged an entry of an epoch that the record had left before."""
        if after.acked == before.acked:
            return False
        fresh = after.acked - before.acked
        return any(epoch < before.record.epoch for _, (epoch, _) in fresh)

    # Steps --------------------------------------------------------------------------------------
    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield every step that can follow, by name, and the state it leads to."""
        for number, node in enumerate(state.nodes):
            if node.up:
                yield from self._steps_of(state, number, node)
            else:
                yield from self._start(state, number, node)
            if state.alive[number] and state.expiries:
                alive = _put(state.alive, number, 0)
                yield (
                    f"session of {number} ends",
                    state._replace(alive=alive, expiries=state.expiries - 1),
                )

    def _steps_of(self, state: State, number: int, node: Node) -> Iterator[tuple[str, State]]:
        if state.crashes and not (self.bounds.apart and self._another_lost(state, number)):
            down = node._replace(
                up=False,
                log=node.log[: node.synced],
                lost_power=not self.rules.fsync,
                seen=0 if self.rules.forgets_epoch else node.seen,
                lead=None,
                follows=0,
                high_watermark=0,
                waiting=(),
            )
            yield (
                f"{number} loses power",
                state._replace(nodes=_put(state.nodes, number, down), crashes=state.crashes - 1),
            )
        if not state.alive[number]:
            yield f"{number} registers again", self._register(state, number, node)
        if node.synced < len(node.log):
            synced = node._replace(synced=len(node.log))
            yield f"{number} flushes", self._settle(state, number, synced)
        yield from self._claim(state, number, node)
        if state.unclean:
            yield from self._name_uncleanly(state, number, node)
        if node.lead is not None:
            yield from self._steps_of_master(state, number, node, node.lead)

    def _another_lost(self, state: State, number: int) -> bool:
        """Whether another node in sync lost power, and has not caught up since."""
        others = (state.nodes[each] for each in state.record.insync if each != number)
        return any(each.lost_power for each in others)

    def _start(self, state: State, number: int, node: Node) -> Iterator[tuple[str, State]]:
        """A node starts again. Its data directory is its own, so its old registration goes."""
        up = node._replace(up=True)
        yield f"{number} starts", self._register(state, number, up)

    def _register(self, state: State, number: int, node: Node) -> State:
        incarnation = node.incarnation + 1
        nodes = _put(state.nodes, number, node._replace(incarnation=incarnation))
        return state._replace(nodes=nodes, alive=_put(state.alive, number, incarnation))

    def _claim(self, state: State, number: int, node: Node) -> Iterator[tuple[str, State]]:
        record = state.record
        if state.alive[number] != node.incarnation or record.epoch >= self.bounds.epochs:
            return
        if self.rules.electable is None:
            if record.master == number and (number, node.incarnation) in record.incarnations:
                return  # it leads
            lost_power = node.lost_power and not self.rules.ignores_lost_power
            lacking = {each for each in range(len(state.nodes)) if self._lacks(state, each)}
            claimed = self._elected(
                record,
                number,
                node.incarnation,
                lost_power,
                bool(state.alive[record.master]) and record.master not in lacking,
                lacking.issuperset({*record.insync} - {number}),
            )
            if claimed is None:
                return
        elif state.alive[record.master] or not self.rules.electable(state, number):
            return
        else:
            insync_now = tuple(sorted({*record.insync, number}))
            claimed = Record(record.epoch + 1, number, insync_now, record.incarnations)
        positions = list(node.told or [-1] * len(state.nodes))
        positions[number] = self._position(node)
        incarnations = [0] * len(state.nodes)
        lead = Lead(
            claimed.epoch, len(node.log), claimed.insync, (), tuple(positions), tuple(incarnations)
        )
        leads = node._replace(seen=claimed.epoch, follows=claimed.epoch, lead=lead)
        handed = (record.master, record.epoch) if record.successor == number else None
        yield (
            f"{number} claims epoch {claimed.epoch}",
            self._settle(state._replace(record=claimed, handed=handed), number, leads),
        )

    def _name_uncleanly(self, state: State, number: int, node: Node) -> Iterator[tuple[str, State]]:
        """An operator has a node lead; what it lacks is declared lost."""
        record = state.record
        others = [each for each in record.insync if each != number]
        runs = any(state.nodes[each].up for each in others)
        if not state.alive[number] or (runs and not self.rules.unclean_beside_processes):
            return
        able = [
            str(each)
            for each in record.insync
            if state.alive[each] and not self._lacks(state, each)
        ]
        candidate = Candidate(GROUP, str(number), node.incarnation)
        try:
            named = Record.of(insync.named_uncleanly(record.state(), candidate, able=able))
        except MastershipRefused:
            return
        kept = 0
        while state.shown[: kept + 1] == node.log[: kept + 1] and kept < len(state.shown):
            kept += 1
        acked = frozenset(
            (index, entry)
            for index, entry in state.acked
            if node.log[index : index + 1] == (entry,)
        )
        yield (
            f"an operator has {number} lead",
            state._replace(
                record=named, shown=state.shown[:kept], acked=acked, unclean=state.unclean - 1
            ),
        )

    def _lacks(self, state: State, number: int) -> bool:
        """Whether a node is registered and says that it lost power, see ``lacks_messages``."""
        node, record = state.nodes[number], state.record
        if self.rules.ignores_lost_power or not node.up or not state.alive[number]:
            return False
        return node.lost_power and (number, state.alive[number]) not in record.incarnations

    def _steps_of_master(
        self, state: State, number: int, node: Node, lead: Lead
    ) -> Iterator[tuple[str, State]]:
        if state.messages and (lead.hands_over < 0 or not self.rules.pauses):
            entry = (lead.epoch, state.messages)
            longer = node._replace(log=(*node.log, entry))
            if not self.rules.epoch_of_waiting:
                longer = longer._replace(waiting=(*node.waiting, (len(node.log), entry)))
            yield (
                f"{number} appends {entry}",
                self._settle(state._replace(messages=state.messages - 1), number, longer),
            )
        if state.record.epoch != lead.epoch:
            yield f"{number} learns that it does not lead", self._step_down(state, number, node)
        for other, slave in enumerate(state.nodes):
            if other != number and slave.up:
                yield from self._copy(state, number, other)
        for word in state.words:
            if word.master == number:
                yield f"{number} hears {word}", self._hear(state, number, node, lead, word)
        yield from self._intend(state, number, node, lead)
        for index, change in enumerate(lead.changes):
            yield from self._carry_out(state, number, node, lead, index, change)
        yield from self._hand_over(state, number, node, lead)

    def _step_down(self, state: State, number: int, node: Node) -> State:
        down = node._replace(lead=None, follows=0)
        return state._replace(nodes=_put(state.nodes, number, down))

    # Copies -------------------------------------------------------------------------------------
    def _copy(self, state: State, number: int, other: int) -> Iterator[tuple[str, State]]:
        """One exchange: the slave says what it has, and then gets at most one entry.

        The first one with a newer master cuts its log, and gets it nothing.
        """
        leader, slave = state.nodes[number], state.nodes[other]
        lead = leader.lead
        assert lead is not None
        if not self.rules.accepts(slave.seen, lead.epoch):
            yield f"{other} refuses {number}", self._step_down(state, number, leader)
            return
        position = len(slave.log)
        follows = slave.follows == lead.epoch
        if not follows:
            position = min(self.rules.cut(slave, leader), position)
            slave = slave._replace(
                log=slave.log[:position],
                synced=min(slave.synced, position),
                follows=lead.epoch,
                lead=None,
                seen=max(slave.seen, lead.epoch),
                high_watermark=min(slave.high_watermark, position),
            )
        knows = lead._replace(
            positions=_put(lead.positions, other, self._position(slave)),
            incarnations=_put(lead.incarnations, other, slave.incarnation),
        )
        if follows:
            if position < len(leader.log):
                log = (*slave.log, leader.log[position])
                synced = len(log) if self.rules.fsync else slave.synced
                slave = slave._replace(log=log, synced=synced)
            slave = slave._replace(high_watermark=min(leader.high_watermark, len(slave.log)))
        if slave == state.nodes[other] and knows == lead:
            return
        copied = self._settle(state, other, slave)
        if not self.rules.epoch_of_positions:
            remembers = copied.nodes[number]._replace(told=knows.positions)
            copied = copied._replace(nodes=_put(copied.nodes, number, remembers))
        step = (
            f"{other} copies from {number}"
            if follows
            else f"{other} follows {number}, cut to {position}"
        )
        yield step, self._settle(copied, number, copied.nodes[number]._replace(lead=knows))
        if state.late and follows:
            said = self._position(slave)
            word = Word(other, number, lead.epoch, slave.incarnation, said)
            words = tuple(sorted({*copied.words, word}))
            yield f"{step}, and says late {said}", copied._replace(words=words, late=state.late - 1)

    def _hear(self, state: State, number: int, node: Node, lead: Lead, word: Word) -> State:
        """A master hears what a copy said before, perhaps of the log of another master."""
        heard = state._replace(words=tuple(each for each in state.words if each != word))
        if self.rules.names_epoch and word.epoch != lead.epoch:
            return heard
        if lead.incarnations[word.copy] > word.incarnation:
            return heard
        knows = lead._replace(
            positions=_put(lead.positions, word.copy, word.position),
            incarnations=_put(lead.incarnations, word.copy, word.incarnation),
        )
        return self._settle(heard, number, node._replace(lead=knows))

    def _position(self, node: Node) -> int:
        return node.synced if self.rules.fsync else len(node.log)

    def _own_position(self, node: Node, lead: Lead) -> int:
        leaving = sum(not each.join for each in lead.changes)
        if self.rules.counts_written_meanwhile:
            leaving = 0
        return node.synced if self._counts_flushed(lead, leaving) else self._position(node)

    def _counts_flushed(self, lead: Lead, leaving: int) -> bool:
        return self.rules.counts_flushed(
            insync=len(lead.insync), leaving=leaving, min_insync=self.rules.min_insync
        )

    def _settle(self, state: State, number: int, node: Node) -> State:
        """Take a changed node: move its high watermark, and show what is below it."""
        node, shown, acked = self._settled(number, node, state.shown, state.acked)
        return state._replace(nodes=_put(state.nodes, number, node), shown=shown, acked=acked)

    def _settle_node(
        self, number: int, node: Node, shown: tuple[Entry, ...], acked: frozenset[tuple[int, Entry]]
    ) -> tuple[Node, tuple[Entry, ...], frozenset[tuple[int, Entry]]]:
        """Return the node, what is shown and what is acknowledged then."""
        lead = node.lead
        if lead is not None:
            positions = _put(lead.positions, number, self._own_position(node, lead))
            lead = lead._replace(positions=positions)
            leaving = {each.node for each in lead.changes if not each.join}
            members = set(lead.insync) - (leaving if self.rules.leave_early else set())
            joining = {str(each.node) for each in lead.changes if each.join}
            end = self.rules.committed(
                {str(at): position for at, position in enumerate(positions) if position >= 0},
                self.rules.counted({str(each) for each in members}, joining),
            )
            enough = replica_rules.acknowledges(
                insync=len(lead.insync), min_insync=self.rules.min_insync
            )
            if end is not None and enough:
                fresh = [(at, node.log[at]) for at in range(end) if node.log[at][0] == lead.epoch]
                acked = acked.union(fresh)
            if end is not None and end > node.high_watermark:
                node = node._replace(high_watermark=end)
                shown = _show(shown, node.log[:end])
            node = node._replace(lead=lead)
        if not self.rules.epoch_of_waiting:
            done = [each for each in node.waiting if each[0] < node.high_watermark]
            acked = acked.union(done)
            node = node._replace(waiting=tuple(w for w in node.waiting if w not in done))
        return node, shown, acked

    # Hand-over ----------------------------------------------------------------------------------
    def _hand_over(
        self, state: State, number: int, node: Node, lead: Lead
    ) -> Iterator[tuple[str, State]]:
        """The master stops, offers, and goes on if nobody claims. Its offer is one step."""
        heir = lead.hands_over
        if heir < 0:
            for other in range(len(state.nodes)):
                if other != number and state.hand_overs and lead.positions[other] >= 0:
                    stops = node._replace(lead=lead._replace(hands_over=other))
                    nodes = _put(state.nodes, number, stops)
                    following = state._replace(nodes=nodes, hand_overs=state.hand_overs - 1)
                    yield f"{number} begins to hand over to {other}", following
            return
        record = state.record
        if record.successor < 0 and self.rules.may_offer(
            lead.positions[heir], end_offset=len(node.log)
        ):
            candidate = Candidate(GROUP, str(heir), lead.incarnations[heir])
            try:
                offered = self.rules.offered(
                    record.state(),
                    lead.epoch,
                    candidate,
                    incarnation_now=state.alive[heir] or None,
                    resigns=self.rules.resigns and self._may_resign(lead),
                )
            except ChangeRefused:
                pass
            else:
                yield f"{number} offers to {heir}", state._replace(record=Record.of(offered))
        try:
            withdrawn = Record.of(self.rules.withdrawn(record.state(), lead.epoch))
        except ChangeRefused:
            return
        goes_on = node._replace(lead=lead._replace(hands_over=-1))
        yield (
            f"{number} goes on as master",
            state._replace(record=withdrawn, nodes=_put(state.nodes, number, goes_on)),
        )

    def _may_resign(self, lead: Lead) -> bool:
        """Its successor may have everything in its page cache alone."""
        durable = self.rules.fsync or self.rules.resigns_always
        return durable or not self._counts_flushed(lead, leaving=1)

    # Changes of the set -------------------------------------------------------------------------
    def _intend(
        self, state: State, number: int, node: Node, lead: Lead
    ) -> Iterator[tuple[str, State]]:
        if not state.changes or len(lead.changes) >= self.rules.changes_at_once:
            return
        for other in range(len(state.nodes)):
            if other == number or any(each.node == other for each in lead.changes):
                continue
            if other in lead.insync:
                wanted = tuple(each for each in lead.insync if each != other)
                flushed = self.rules.fsync or not self._counts_flushed(lead, leaving=1)
                change = Change(False, other, 0, wanted, flushed)
            elif lead.positions[other] >= 0 and self.rules.may_join(
                lead.positions[other],
                high_watermark=node.high_watermark,
                epoch_start=lead.start,
            ):
                wanted = tuple(sorted({*lead.insync, other}))
                change = Change(True, other, lead.incarnations[other], wanted, True)
            else:
                continue
            intends = node._replace(lead=lead._replace(changes=(*lead.changes, change)))
            yield (
                f"{number} intends {'to add' if change.join else 'to remove'} {other}",
                self._settle(state._replace(changes=state.changes - 1), number, intends),
            )

    def _carry_out(
        self, state: State, number: int, node: Node, lead: Lead, index: int, change: Change
    ) -> Iterator[tuple[str, State]]:
        changes = lead.changes
        others = (*changes[:index], *changes[index + 1 :])
        if not change.flushed:
            if self.rules.may_shrink(
                node.synced, high_watermark=node.high_watermark, epoch_start=lead.start
            ):
                ready = (*changes[:index], change._replace(flushed=True), *changes[index + 1 :])
                asks = node._replace(lead=lead._replace(changes=ready))
                yield (
                    f"{number} has flushed what counts",
                    state._replace(nodes=_put(state.nodes, number, asks)),
                )
            return
        if change.done and not change.join and self.rules.gives_up_unknown:
            gives_up = node._replace(lead=lead._replace(changes=others))
            yield f"{number} gives its change up", self._settle(state, number, gives_up)
        if change.done:
            known = lead._replace(insync=change.insync, changes=others)
            yield (
                f"{number} learns that its change is agreed",
                self._settle(state, number, node._replace(lead=known)),
            )
            return
        try:
            record = self._changed(state, lead, change)
        except ChangeRefused:
            given_up = node._replace(lead=lead._replace(changes=others))
            if state.record.epoch != lead.epoch:
                given_up = given_up._replace(lead=None, follows=0)
            yield (
                f"change of {number} is refused",
                self._settle(state, number, given_up),
            )
            return
        done = (*changes[:index], change._replace(done=True), *changes[index + 1 :])
        agreed = node._replace(lead=lead._replace(changes=done))
        state = state._replace(record=record)
        slave = state.nodes[change.node]
        # A node that starts gets a new registration, so the record names this start of it.
        named = slave.up and change.incarnation == slave.incarnation
        if change.join and (named or self.rules.forgets_lost_power):
            joined = slave._replace(lost_power=False)
            state = state._replace(nodes=_put(state.nodes, change.node, joined))
        yield f"change of {number} is agreed", self._settle(state, number, agreed)

    def _changed(self, state: State, lead: Lead, change: Change) -> Record:
        if not change.join:
            record = Record.of(insync.left(state.record.state(), lead.epoch, str(change.node)))
        else:
            now = state.alive[change.node] or None
            record = Record.of(
                insync.joined(
                    state.record.state(),
                    lead.epoch,
                    Candidate(GROUP, str(change.node), change.incarnation),
                    incarnation_now=now if self.rules.names_incarnation else change.incarnation,
                )
            )
        # With one change under way this is what the decision says. With more, each overwrites.
        return record._replace(insync=change.insync)


def _elected(
    record: Record,
    number: int,
    incarnation: int,
    lost_power: bool,
    alive: bool,
    others_lack: bool,
) -> Record | None:
    candidate = Candidate(GROUP, str(number), incarnation, lost_power=lost_power)
    try:
        return Record.of(
            insync.elected(
                record.state(), candidate, master_is_alive=alive, others_lack=others_lack
            )
        )
    except MastershipRefused:
        return None


def _put(values: tuple, at: int, value: object) -> tuple:  # type: ignore[type-arg]
    return (*values[:at], value, *values[at + 1 :])


def _show(shown: tuple[Entry, ...], below: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """Return what readers saw; None stands where two of them saw different entries."""
    both = min(len(shown), len(below))
    if shown[:both] != below[:both]:
        return (None,)  # type: ignore[arg-type]
    return shown if len(shown) >= len(below) else below
