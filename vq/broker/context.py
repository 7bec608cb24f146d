"""What all channels of a node share: the storer, timers, mastership and counters."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from vq.broker.storer import Storer
from vq.clock import Clock


class Timer(Protocol):
    """A callback that will be called unless it is cancelled first."""

    def cancel(self) -> None:
        """Do not call it."""
        ...


@dataclass(slots=True)
class Counters:
    """What a node counts from its start on; nothing is ever subtracted."""

    messages_in: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    batches_in: int = 0
    duplicates: int = 0
    refused: int = 0


def _fetch_at_once(session: object, read: Any) -> None:
    """Stand in where nobody fetches on a thread."""
    read.then()


@dataclass(slots=True, kw_only=True)
class Context:
    """Shared by the channels of one node.

    Attributes:
        group: This node's broker group.
        epoch: Epoch of its mastership, stamped into every batch; 0 while it has none.
        epoch_problem: Why a newer epoch than ``epoch`` is not acted in, "" if there is none.
        may_acknowledge: Whether an append may still be acknowledged under ``epoch``.
        call_later: Calls back after so many seconds, on the loop.
        fetch_cold: Called with a session and a ``cold_reads.ColdRead``.
        suspect: Called with a channel and an offset at which its bytes seem to be damaged.
        waiting: Requests of all sessions that wait for an answer.
    """

    group: str
    storer: Storer
    clock: Clock
    call_later: Callable[[float, Callable[[], None]], Timer]
    may_acknowledge: Callable[[], bool]
    suspect: Callable[[Any, int], None] = lambda channel, offset: None
    fetch_cold: Callable[[Any, Any], None] = _fetch_at_once
    epoch: int = 0
    epoch_problem: str = ""
    counters: Counters = field(default_factory=Counters)
