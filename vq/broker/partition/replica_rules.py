"""The rules by which copies of a log stay one sequence: what counts, what is committed, what goes.

Plain values in and out. The rules that decide who leads and who is in sync are in
``coordination.brokers.insync``; ``tests/property/test_replication_rules.py`` explores both together
in a small model, and shows for each rule what is lost without it.

No rule looks at a clock. Positions are end offsets of what a node has made durable (with flush
``async``: of what it has written, but for ``counts_flushed``).
"""

from collections.abc import Callable, Collection, Iterable, Mapping

from vq.store.log.lookup import EpochEnd


def accepts(seen_epoch: int, epoch: int) -> bool:
    """Return whether a node that has stored ``seen_epoch`` takes anything from ``epoch``.

    A node stores an epoch before it acts on it. So a master that was replaced finds nobody in the
    set of its successor who still takes its batches.
    """
    return epoch >= seen_epoch


def counted(insync: Iterable[str], joining: Iterable[str]) -> frozenset[str]:
    """Return the nodes without which nothing is committed.

    A node that the master intends to add counts at once: the record may name it already while the
    answer is under way, and it could then be elected. A node that is to leave counts until the
    record is known not to name it.
    """
    return frozenset(insync).union(joining)


def committed(positions: Mapping[str, int], counted: Collection[str]) -> int | None:
    """Return the offset below which everything is on every node that counts.

    No master that is elected lacks any of it, however few these nodes are: so readers may see it.
    Whether it may be acknowledged is for ``acknowledges`` to say.

    Args:
        positions: Of the master and of the slaves that reported one in this epoch.
        counted: See ``counted``.

    Returns:
        None if that is not known yet: nothing new is committed.
    """
    end: int | None = None
    for node in counted:
        position = positions.get(node)
        if position is None:
            return None
        if end is None or position < end:
            end = position
    return end


def acknowledges(*, insync: int, min_insync: int) -> bool:
    """Return whether what is committed may be acknowledged where all in sync must have it.

    Args:
        insync: How many nodes the record names; one that is joining is none of them yet.
        min_insync: Setting of the topic.
    """
    return insync >= min_insync


def counts_flushed(*, insync: int, leaving: int, min_insync: int) -> bool:
    """Return whether a master counts of its own log what it has flushed, with flush ``async`` too.

    A message in the page caches of ``min_insync`` nodes survives one loss of power. With fewer
    nodes in sync it does not: so what the master counts then must be on its disk. This begins with
    the intention to shrink the set, since ZooKeeper may have agreed before the master knows.

    Args:
        insync: How many nodes the record names, as far as the master knows.
        leaving: How many of them are to leave, or may have left already.
        min_insync: Setting of the topic.
    """
    return insync - leaving < min_insync


def may_shrink(flushed: int, *, high_watermark: int, epoch_start: int) -> bool:
    """Return whether ZooKeeper may be asked to shrink the set, where ``counts_flushed`` holds.

    The master must have flushed what it committed, and what it had when it began to lead: the
    master before may have committed that, and its copy here may lie in the page cache.
    """
    return flushed >= max(high_watermark, epoch_start)


def may_join(position: int, *, high_watermark: int, epoch_start: int) -> bool:
    """Return whether a slave that has a log up to ``position`` may be in sync.

    It must have everything that is committed, and everything that the master had when it began to
    lead: a part of that may have been committed by the master before, without this one knowing.
    """
    return position >= max(high_watermark, epoch_start)


def may_offer(position: int, *, end_offset: int) -> bool:
    """Return whether a master may hand over to a node that has a log up to ``position``.

    The node has everything that was shown, as it is in sync. It must also have what the master took
    and did not acknowledge yet: otherwise this is cut, and its producers must send it again. The
    master takes nothing more meanwhile.
    """
    return position >= end_offset


def common_end(
    last_epoch: int,
    own: Callable[[int], EpochEnd | None],
    other: Callable[[int], EpochEnd | None],
) -> int | None:
    """Return where a log stops to be equal to the log of a newer master; it is cut there.

    Both logs are asked in turns for the end of their largest epoch up to some epoch, until both
    name the same one; the smaller of both ends is what they have in common. Neither a high
    watermark nor a length can tell this place (KIP-101, KIP-279).

    Args:
        last_epoch: Epoch of the last batch of the log that is to be cut.
        own: ``LogReader.epoch_end`` of that log.
        other: The same of the master's log.

    Returns:
        None: they have no epoch in common, so nothing of the log can be kept.
    """
    epoch = last_epoch
    while True:
        theirs = other(epoch)
        mine = own(theirs.epoch) if theirs is not None else None
        if theirs is None or mine is None:
            return None
        if mine.epoch == theirs.epoch:
            return min(mine.offset, theirs.offset)
        epoch = mine.epoch


def parts_at(
    offset: int, last_epoch: int, end: EpochEnd | None, *, start_offset: int
) -> int | None:
    """Return where a log parts from what somebody has read up to ``offset``; None: not before it.

    At most one master ever led in an epoch. So a log that has the last batch that was read, by its
    epoch and its offset, has everything before it, too (KIP-320).

    Args:
        offset: Up to which was read.
        last_epoch: Epoch of the batch that has the byte before ``offset``.
        end: ``LogReader.epoch_end(last_epoch)`` of the log.
        start_offset: Where the log begins. What lies before is kept by nobody, so it is not known.

    Example, of a log with batches of epochs 1 and 3 at offsets 0 and 100, and the end 300: who has
    read up to 100 in epoch 1 goes on; up to 200 in epoch 1, or up to 200 in epoch 2: it parts at
    100; up to 400 in epoch 3: it parts at 300.
    """
    if offset <= start_offset:
        return None
    if end is None:
        return start_offset
    if end.epoch == last_epoch and offset <= end.offset:
        return None
    return min(offset, end.offset)
