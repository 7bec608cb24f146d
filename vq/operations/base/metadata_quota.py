"""The quota ``metadata``: how many partitions a user may make or move in an hour.

What was made and moved is in the records of acts, so nothing else is counted or kept. The process
that acts asks them; no broker sees such a change. So the quota holds for whoever can act through
another process alone, such as a person at a console; for whoever may write to ZooKeeper, it is a
guard against slips and programs that run away.
"""

from collections.abc import Sequence
from typing import Final

from vq.client.cluster import ClusterClient
from vq.clock import HOUR_MS
from vq.coordination.leases import acts
from vq.coordination.security.quotas import read_quotas
from vq.coordination.tree.coordinator import READS_PER_CALL_MAX, Unreadable
from vq.errors import InvalidArgument, Throttled
from vq.log_lines import get_logger
from vq.security.quotas import QuotaLimit, value_text

logger = get_logger(__name__)
_QUOTA: Final = f"the quota {QuotaLimit.METADATA}="


async def metadata_limit(cluster: ClusterClient, user: str) -> float | None:
    """Return how many partitions a user may make or move in an hour; None: there is no limit.

    Quotas that cannot be read limit nobody: acts are what repairs them.
    """
    if not user:
        return None
    try:
        quotas = await read_quotas(cluster.coordinator)
    except Unreadable as error:
        logger.warning("quotas cannot be read, so no quota of metadata holds", error=error)
        return None
    return quotas.of_user(user).get(QuotaLimit.METADATA)


async def check_metadata(
    cluster: ClusterClient, user: str, limit: float, partitions: int, *, act: str, now_ms: int
) -> None:
    """Return if an act stays within the limit of its user.

    Args:
        cluster: A started client.
        user: Whose it is.
        limit: Partitions in an hour.
        partitions: How many it makes or moves.
        act: The name of its record: earlier ones count.
        now_ms: The time in its record.

    Raises:
        Throttled: Earlier acts have used too much; the details have ``delay_ms``.
        InvalidArgument: It alone is more than an hour's.
    """
    text = value_text(QuotaLimit.METADATA, limit)
    if partitions > limit:
        raise InvalidArgument(
            f"{partitions} partitions are more than {_QUOTA}{text} of user {user} allows in an "
            "hour: make or move fewer at a time, or have the quota raised"
        )
    wait_ms = pause_ms(limit, partitions, await _used(cluster, user, act, now_ms), now_ms)
    if wait_ms:
        raise Throttled(
            f"{_QUOTA}{text} of user {user} is used up: {partitions} more partitions can be made "
            f"or moved in {wait_ms / 1000:.0f} s; nothing was done",
            details={"user": user, "limit": str(QuotaLimit.METADATA), "delay_ms": wait_ms},
        )


def pause_ms(limit: float, partitions: int, used: Sequence[tuple[int, int]], now_ms: int) -> int:
    """Return how long to wait until so many partitions more are within a limit. Pure.

    ``used``: when how many were made or moved within the last hour, the oldest first.
    """
    left = limit - partitions - sum(each for _, each in used)
    for time_ms, count in used:
        if left >= 0:
            return 0
        left += count
        if left >= 0:
            return max(1, time_ms + HOUR_MS - now_ms)
    return 0


async def _used(cluster: ClusterClient, user: str, act: str, now_ms: int) -> list[tuple[int, int]]:
    first = f"{max(0, now_ms - HOUR_MS):013d}"
    names = [each for each in await acts.list_acts(cluster.coordinator) if first <= each < act]
    step = READS_PER_CALL_MAX // 2
    return [
        (known.record.time_ms, known.record.partitions)
        for begin in range(0, len(names), step)
        for known in await acts.read_acts(cluster.coordinator, names[begin : begin + step])
        if known.record.charged == user and known.record.partitions and _counts(known)
    ]


def _counts(known: acts.KnownAct) -> bool:
    """Whether anything of an act may be done: others than refused ones may have failed in part."""
    return known.outcome is None or not known.outcome.refused
