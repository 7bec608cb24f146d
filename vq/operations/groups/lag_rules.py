"""What is judged of a consumer group's place in a partition: one set of rules. Pure.

The table ``vq.lag``, the lag report, ``vq group describe`` and the metrics of groups judge by
these. The first rule that fits counts; docs/howto/report-lag.md tells what to do.

    unknown   a problem: nothing can be told, see ``LagFacts.problem``
    stopped   needs_reset   the group was stopped there, and only a reset lets it go on
              other_topic   the offset was committed for another topic of this name
              beyond_end    the committed offset lies beyond the end: messages were lost
              owner_error   its owner reports an error and does not go on
    unknown   placement     where the partition lives cannot be read
              broker_silent the lag is not known: a broker does not answer, or cannot read its log
    ok                      nothing lies behind the group's place, and nothing was deleted unread
    stopped   no_members    something does, and the group has no consumer, nor does a stream read
    stalled   unmoved       something does, and nothing was committed for ``stalled_after_s``
    warning   overtaken     messages were deleted before the group read them
              no_owner      no member consumes the partition, although the group has members
              old           the oldest message behind it is at least ``warn_s`` old
              many_bytes    at least ``warn_bytes`` lie behind it
              many_messages at least ``warn_messages`` do
    unknown   not_measured  a broker did not tell the age, or the count, that a threshold asks for
    ok                      otherwise

A number that is not known fulfils no rule but the last ones.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

from vq.clock import YEAR_S
from vq.errors import InvalidArgument

#: From the worst on.
VERDICTS: Final = ("stopped", "stalled", "warning", "unknown", "ok")
_BYTES_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LagThresholds:
    """From where on a lag is too much; None: it never is.

    Attributes:
        warn_s: Age of the oldest message that a group has not handled, in seconds.
        warn_bytes: Bytes behind its place.
        warn_messages: Messages behind it.
        stalled_after_s: So long without a commit, although there is something to handle.
    """

    warn_s: float | None = 300.0
    warn_bytes: int | None = None
    warn_messages: int | None = None
    stalled_after_s: float = 300.0

    def __post_init__(self) -> None:
        """Check the bounds."""
        for name, most in (
            ("warn_s", YEAR_S),
            ("warn_bytes", _BYTES_MAX),
            ("warn_messages", _BYTES_MAX),
            ("stalled_after_s", YEAR_S),
        ):
            value = getattr(self, name)
            if value is not None and not 0 < value <= most:
                raise InvalidArgument(f"{name} = {value!r} is outside (0, {most}]")


@dataclass(frozen=True, slots=True, kw_only=True)
class LagFacts:
    """What is known of a group in one partition; None: unknown, or there is none.

    Attributes:
        problem: Why nothing can be told, in one word that becomes the cause.
        needs_reset: The group was stopped there.
        other_topic: The offset was committed for another topic of this name.
        owner_error: Its owner reports an error.
        no_placement: Where the partition lives cannot be read.
        committed: Everything before this offset is done.
        start, end: Where the partition starts and ends.
        lag_bytes, lag_messages: What lies behind the group's place.
        lag_s: The age in seconds of the oldest message in it.
        members: Live consumers of the group.
        by_stream: A stream that is no member writes the group's progress, so it needs no members.
        has_owner: One of them consumes the partition.
        committed_ms: When it was committed, in milliseconds since 1970.
        unmoved_s: For how long earlier looks have seen the same offset, with something behind it.
    """

    problem: str | None = None
    needs_reset: bool = False
    other_topic: bool = False
    owner_error: bool = False
    no_placement: bool = False
    committed: int | None = None
    start: int | None = None
    end: int | None = None
    lag_bytes: int | None = None
    lag_messages: int | None = None
    lag_s: float | None = None
    members: int = 0
    by_stream: bool = False
    has_owner: bool = False
    committed_ms: int | None = None
    unmoved_s: float | None = None

    @property
    def is_overtaken(self) -> bool:
        """Whether messages were deleted before the group read them."""
        committed, start = self.committed, self.start
        return committed is not None and start is not None and committed < start


class LagVerdict(NamedTuple):
    """A verdict, one of ``VERDICTS``, and its cause; None: nothing is wrong."""

    verdict: str
    cause: str | None = None


def why_stopped(facts: LagFacts) -> str | None:
    """Return why the group cannot go on in the partition, whatever lies there; None: it can."""
    if facts.needs_reset:
        return "needs_reset"
    if facts.other_topic:
        return "other_topic"
    if facts.committed is not None and facts.end is not None and facts.committed > facts.end:
        return "beyond_end"
    return "owner_error" if facts.owner_error else None


def judge_lag(facts: LagFacts, thresholds: LagThresholds, *, now_s: float) -> LagVerdict:
    """Return the verdict on a group in one partition; ``now_s`` is in seconds since 1970."""
    if facts.problem is not None:
        return LagVerdict("unknown", facts.problem)
    stopped = why_stopped(facts)
    if stopped is not None:
        return LagVerdict("stopped", stopped)
    if facts.no_placement:
        return LagVerdict("unknown", "placement")
    if facts.lag_bytes is None:
        return LagVerdict("unknown", "broker_silent")
    if facts.lag_bytes == 0 and not facts.is_overtaken:
        return LagVerdict("ok")
    if facts.lag_bytes > 0 and not facts.members and not facts.by_stream:
        return LagVerdict("stopped", "no_members")
    if facts.lag_bytes > 0 and _is_unmoved(facts, thresholds.stalled_after_s, now_s):
        return LagVerdict("stalled", "unmoved")
    if facts.is_overtaken:
        return LagVerdict("warning", "overtaken")
    if not facts.has_owner and facts.members:
        return LagVerdict("warning", "no_owner")
    return _by_size(facts, thresholds)


def _is_unmoved(facts: LagFacts, after_s: float, now_s: float) -> bool:
    """Whether an earlier look, or a commit and a message that are both old, prove it."""
    if facts.unmoved_s is not None and facts.unmoved_s >= after_s:
        return True
    if facts.lag_s is None or facts.committed_ms is None:
        return False
    return facts.lag_s >= after_s and now_s - facts.committed_ms / 1000 >= after_s


def _by_size(facts: LagFacts, thresholds: LagThresholds) -> LagVerdict:
    limits = (
        (thresholds.warn_s, facts.lag_s, "old"),
        (thresholds.warn_bytes, facts.lag_bytes, "many_bytes"),
        (thresholds.warn_messages, facts.lag_messages, "many_messages"),
    )
    for limit, value, cause in limits:
        if limit is not None and value is not None and value >= limit:
            return LagVerdict("warning", cause)
    if any(limit is not None and value is None for limit, value, _ in limits):
        return LagVerdict("unknown", "not_measured")
    return LagVerdict("ok")
