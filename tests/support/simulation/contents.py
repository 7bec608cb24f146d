"""The bytes in the logs of running brokers: compared between copies, read message by message."""

from functools import partial

from support.simulation.losses import Place
from support.simulation.world import BrokerHost
from support.store import patiently

from vq.broker.partition.channel import Channel
from vq.store.records.format import RECORD_HEADER
from vq.store.records.record import boundaries


def has_the_same(master: BrokerHost, copy: BrokerHost) -> bool:
    """Whether a copy serves, and has the bytes of its master."""
    return copy.serves and not different(master, copy)


def different(master: BrokerHost, copy: BrokerHost) -> list[str]:
    """Return the partitions of which a copy has other bytes than its master."""
    assert master.node is not None
    assert copy.node is not None
    theirs = copy.node.parts.partitions.channels
    return [
        f"{channel} has {span(theirs.get(key))}, not {span(channel)}"
        for key, channel in master.node.parts.partitions.channels.items()
        if channel.span is not None and all_contents(channel) != all_contents(theirs.get(key))
    ]


def span(channel: Channel | None) -> str:
    """Return what there is of a log, for people."""
    logs = [each.log for each in (() if channel is None else (*channel.older, channel))]
    return " + ".join(
        "no log" if log is None else f"[{log.start_offset}, {log.end_offset}) {log.state}"
        for log in logs
    )


def all_contents(channel: Channel | None) -> list[tuple[int, bytes]]:
    """Return the contents of all ranges that have some."""
    ranges = [] if channel is None else [*channel.older, channel]
    return [found for found in map(contents, ranges) if found[1]]


def contents(channel: Channel | None) -> tuple[int, bytes]:
    """Return where the log of a channel begins, and its bytes; one without bytes is none."""
    log = None if channel is None else channel.log
    if log is None or not log.size_bytes:
        return 0, b""
    reader, end = log.reader, log.end_offset
    found, offset = b"", log.start_offset
    while offset < end:
        # An index may have to be fetched, too: of a block whose index file was lost.
        fetch, _ = patiently(partial(reader.cold, offset, 1 << 20, end))
        if fetch is not None:
            fetch()
        part, _ = patiently(partial(reader.read, offset, 1 << 20, end))
        found, offset = found + bytes(part), offset + len(part)
    return log.start_offset, found


def places(partition: str, start: int, data: bytes) -> list[Place]:
    """Return the messages, and control records, in the bytes of a log."""
    return [
        (partition, offset, RECORD_HEADER.unpack_from(data, offset - start)[2])
        for offset in boundaries(data, start)[:-1]
    ]
