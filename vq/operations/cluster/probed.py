"""What a probe has sent to one broker group and what became of it. Pure: the time is an argument.

sent ──▶ read back                      received; late if it took over LATE_S
  ├────▶ acknowledged, and the reader passed its place without it      lost
      ├────▶ acknowledged, and retention deleted it before it was read     counts nowhere
  └────▶ refused, or no answer          failed; if it is read all the same: received, too
"""

from dataclasses import dataclass, field
from typing import Final

from vq.broker.base.histogram import SECONDS, Histogram

#: A message that takes longer from the begin of its send until it is read back is late, in seconds.
LATE_S: Final = 5.0
#: A message without an answer is waited for so long, in seconds; nobody promised that it is stored.
FORGET_S: Final = 60.0
#: While so many messages wait to be read back, no more are sent.
WAITING_MAX: Final = 600
#: Upper bounds of the latency, in seconds: those of acknowledgements, and of failovers.
_BOUNDS: Final = (*SECONDS, 30.0, 60.0)


@dataclass(slots=True)
class ProbeResult:
    """What the probe of one broker group has seen since it began.

    Attributes:
        group: The broker group.
        sent: Messages that were acknowledged.
        failed: Messages that were refused, or had no answer.
        received: Messages that were read back.
        late: Of these, those for which that took more than ``LATE_S``.
        lost: Messages that were acknowledged, and are not where they should be.
        latency: Seconds from the begin of a send until the message was read back.
        last_s: The last of these; None: there is none.
        waiting_s: For how long the oldest acknowledged message has not been read back; 0: none.
        success_ms: When a message was last read back, in milliseconds since 1970; 0: never.
        error: Why nothing is sent or read now; "": all is well.
    """

    group: str
    sent: int = 0
    failed: int = 0
    received: int = 0
    late: int = 0
    lost: int = 0
    latency: Histogram = field(default_factory=lambda: Histogram(_BOUNDS))
    last_s: float | None = None
    waiting_s: float = 0.0
    success_ms: int = 0
    error: str = ""


@dataclass(slots=True)
class _Unread:
    """A message that was not read back: when its send began, and where it is stored."""

    begun_s: float
    offset: int | None = None


class Outstanding:
    """The messages of a probe that were not read back, and the counts of all.

    Args:
        result: Counts what becomes of them.
    """

    def __init__(self, result: ProbeResult) -> None:
        self.result = result
        self._waiting: dict[int, _Unread] = {}

    @property
    def is_full(self) -> bool:
        """Whether no more should be sent."""
        return len(self._waiting) >= WAITING_MAX

    def begin(self, number: int, now_s: float) -> None:
        """A send begins."""
        self._waiting[number] = _Unread(now_s)

    def acknowledge(self, number: int, offset: int) -> None:
        """The broker says that the message is stored, at an offset."""
        self.result.sent += 1
        if (found := self._waiting.get(number)) is not None:
            found.offset = offset

    def fail(self, number: int, *, is_unknown: bool) -> None:
        """The send had no answer, or was refused."""
        self.result.failed += 1
        if not is_unknown:
            self._waiting.pop(number, None)

    def read(self, number: int, now_s: float, wall_ms: int) -> None:
        """A message was read back; one that is not waited for any more counts nowhere."""
        found = self._waiting.pop(number, None)
        if found is None:
            return
        took_s = now_s - found.begun_s
        result = self.result
        result.received += 1
        result.late += took_s > LATE_S
        result.latency.observe(took_s)
        result.last_s, result.success_ms = took_s, wall_ms

    def passed(self, offset: int, now_s: float) -> list[int]:
        """Everything before an offset was read; return the numbers of those that are lost."""
        lost, forgotten = [], []
        for number, each in self._waiting.items():
            if each.offset is None:
                if now_s - each.begun_s > FORGET_S:
                    forgotten.append(number)
            elif each.offset < offset:
                lost.append(number)
        for number in (*lost, *forgotten):
            del self._waiting[number]
        self.result.lost += len(lost)
        return lost

    def deleted(self, offset: int) -> None:
        """Retention deleted everything before an offset."""
        for number, each in list(self._waiting.items()):
            if each.offset is not None and each.offset < offset:
                del self._waiting[number]

    def waiting_s(self, now_s: float) -> float:
        """Return for how long the oldest acknowledged message has not been read back; 0: none."""
        begun = (each.begun_s for each in self._waiting.values() if each.offset is not None)
        return now_s - min(begun, default=now_s)
