"""What is wrong with the partitions of a node beside their states, in words for an operator.

Earlier ranges that are damaged, append times ahead of the clock, messages that a take-over lost,
and ends that a start took off. Each kind is bounded. Not in here: the states (``partition_state``).
"""

from collections.abc import Collection, Iterable, Iterator

from vq.broker.logs.old_blocks import ahead_ms_of
from vq.broker.logs.topics_view import PROBLEMS_TOLD_MAX
from vq.broker.partition.channel import Channel
from vq.broker.partition.partition_state import ChannelState
from vq.broker.partition.places import lost_at_start
from vq.broker.partition.ranges import end_of_range, is_cut_short, lost_in_take_overs
from vq.clock import Clock


def channel_problems(channels: Collection[Channel], clock: Clock) -> list[str]:
    """Return what STATUS tells beside the states of partitions; bounded."""
    damaged = [
        f"an earlier range of partition {channel} is {older.state}: "
        f"{older.log.reason if older.log is not None else older.cause}"
        for channel in channels
        for older in channel.older
        if older.state in {ChannelState.QUARANTINED, ChannelState.UNREADABLE}
    ]
    damaged += [
        f"an earlier range of partition {channel} ends at {older.log.end_offset}, not "
        f"{end_of_range(older)}"
        for channel in channels
        for older in channel.older
        if older.log is not None
        and older.state is not ChannelState.QUARANTINED
        and is_cut_short(older)
    ]
    told = damaged[:PROBLEMS_TOLD_MAX]
    if len(damaged) > len(told):
        told.append(f"{len(damaged) - len(told)} more earlier ranges are damaged or unreadable")
    return [*told, *_ahead(channels, clock), *_losses(channels), *_cuts(channels)]


def _ahead(channels: Collection[Channel], clock: Clock) -> list[str]:
    """Return which logs have append times ahead of the clock: it was wrong, or is."""
    all_ms = ((ahead_ms_of(each, clock), each) for each in channels)
    found = [(ahead_ms, str(each)) for ahead_ms, each in all_ms if ahead_ms]
    if not found:
        return []
    ahead_ms, name = max(found)
    hours = ahead_ms // 3_600_000
    return [
        f"append times of {len(found)} partition(s) lie ahead of the clock, those of {name} by "
        f"{hours} h: a clock was wrong. Their messages get no earlier times, and count as old "
        "as the time since this broker has seen that. Check the clocks; then have them begin "
        "new logs with true times: `vq topic heal-clock NAME`"
    ]


def _losses(channels: Collection[Channel]) -> list[str]:
    """Return what was lost in take-overs, until the files with it are deleted; bounded."""
    lost = [(each, file) for each in ranges_of(channels) for file in lost_in_take_overs(each)]
    told = [
        f"a take-over lost up to {file.messages} acknowledged messages of partition {each}, "
        f"whose topic has replication = async: the new master had nothing of offsets "
        f"[{file.start_offset}, {file.end_offset}). They are kept in {file.path}; `vq "
        "cluster diverged` prints them, and has the file deleted, which ends this"
        for each, file in lost[:PROBLEMS_TOLD_MAX]
    ]
    if len(lost) > len(told):
        messages = sum(file.messages for _, file in lost[len(told) :])
        told.append(
            f"{len(lost) - len(told)} more ranges with up to {messages} messages were lost so"
        )
    return told


def _cuts(channels: Collection[Channel]) -> list[str]:
    """Return what starts took off the ends of logs, until the files are deleted; bounded."""
    cut = [(each, file) for each in ranges_of(channels) for file in lost_at_start(each)]
    told = [
        f"a start took the end of partition {each} off, {file.end_offset - file.start_offset} "
        f"bytes from offset {file.start_offset} on with {file.messages} whole messages: after "
        "a crash it looked like a write that was cut short. If it was damaged instead, they "
        f"may have been acknowledged. They are kept in {file.path}; `vq cluster diverged` "
        "prints what can be read, and has the file deleted, which ends this"
        for each, file in cut[:PROBLEMS_TOLD_MAX]
    ]
    if len(cut) > len(told):
        told.append(f"{len(cut) - len(told)} more ends were taken off so")
    return told


def ranges_of(channels: Iterable[Channel]) -> Iterator[Channel]:
    """Yield all channels, and those of earlier ranges."""
    for channel in channels:
        yield channel
        yield from channel.older
