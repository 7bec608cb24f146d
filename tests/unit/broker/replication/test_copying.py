"""One partition that is copied: what of an answer is written when, and what it keeps in memory."""

from types import SimpleNamespace
from typing import Any

import google_crc32c

from vq.broker.replication.copying import Copy, CopySession
from vq.model import TopicPartition
from vq.store.log.framing import frame
from vq.store.records.format import CONTROL_BYTES
from vq.turn import Turn

RECORDS = b"r" * 100
SIZE = CONTROL_BYTES + len(RECORDS)


def batch(start: int, synced: int) -> bytes:
    """A batch that was appended when the master's log was durable up to ``synced``."""
    return frame(SIZE, 1, google_crc32c.value(RECORDS), start, synced, 1, 1, None, 0) + RECORDS


class Following:
    """A copy whose channel notes what is written, and is flushed by hand."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.log = SimpleNamespace(
            synced_offset=0,
            end_offset=0,
            status=SimpleNamespace(messages=0),
            append_framed=self._copied,
        )
        self.session = SimpleNamespace(pending=0, has=lambda _: True, ask=self._ask)
        channel: Any = SimpleNamespace(
            log=self.log,
            failed=False,
            sync=True,
            role=SimpleNamespace(follows=""),
            high_watermark=0,
            copies=SimpleNamespace(told=0),
            when_settled=lambda _: None,
        )
        self.asked = 0
        session: Any = self.session
        self.copy = Copy(channel, session)

    def _ask(self, _: Copy) -> None:
        self.asked += 1

    def _copied(self, data: bytes, _: object) -> None:
        self.written.append(bytes(data))
        self.log.end_offset += len(data)

    def flush(self) -> None:
        self.log.synced_offset = self.log.end_offset
        self.copy._settled()


def test_an_answer_is_written_in_parts_each_behind_a_flush() -> None:
    """The second batch calls the first one durable, the third one the second."""
    following = Following()
    parts = [batch(0, 0), batch(SIZE, SIZE), batch(2 * SIZE, 2 * SIZE)]
    following.copy.take(b"".join(parts))
    assert following.written == parts[:1]
    following.flush()
    following.flush()
    assert (following.written, following.asked) == (parts, 0)
    following.flush()
    assert following.asked == 1


def test_an_answer_counts_as_memory_until_all_of_it_is_written() -> None:
    """What is left is a view of the answer, which keeps all of it."""
    following = Following()
    following.copy.take(batch(0, 0) + batch(SIZE, SIZE))
    assert (len(following.copy.pending), following.session.pending) == (SIZE, 2 * SIZE)
    following.flush()
    assert following.session.pending == 0
    following.copy.take(batch(2 * SIZE, 2 * SIZE) + batch(3 * SIZE, 3 * SIZE))
    following.copy.drop()
    assert following.session.pending == 0


# The session: how fast it asks --------------------------------------------------------------------
class Loop:
    """A loop at time 100 that notes what is to be called, and after which time."""

    def __init__(self) -> None:
        self.calls: list[float] = []

    def time(self) -> float:
        return 100.0

    def call_soon(self, _: object) -> None:
        self.calls.append(0.0)

    def call_later(self, delay_s: float, _: object) -> None:
        self.calls.append(delay_s)


async def answered(*, high_watermark: int, bytes_per_s: int) -> float:
    """Return how long a session waits with its next request after an answer of one batch."""
    connection: Any = SimpleNamespace(close=lambda: None)
    master: Any = SimpleNamespace(epoch=1, incarnation=1)
    logs: Any = SimpleNamespace(drop_soon=lambda *_: None)
    turn = Turn(lambda _: None)
    session = CopySession(connection, master, "n2", logs, turn, bytes_per_s=bytes_per_s)
    channel: Any = SimpleNamespace(
        start_offset=0,
        partition=TopicPartition("t", 0),
        topic_id="t-0",
        log=SimpleNamespace(
            synced_offset=0,
            end_offset=0,
            status=SimpleNamespace(messages=0),
            append_framed=lambda *_: None,
        ),
        place=SimpleNamespace(copy_refusal=None),
        high_watermark=0,
        older=(),
        parked={},
        role=SimpleNamespace(follows=""),
        show_what_was_told=lambda _: None,
        flush_due=SimpleNamespace(appended=lambda *_: None),
        settings=None,
        copies=SimpleNamespace(told=0, deleted=0),
        sync=False,
    )
    session.add(channel)
    (handle,) = session.state.parts
    session.state.items.clear()  # as if it were asked for
    session._scheduled = False
    loop: Any = Loop()
    session._loop, session.answered_at = loop, loop.time()
    session._turn = Turn(loop.call_soon)
    data = batch(0, 0)
    result = SimpleNamespace(
        handle=handle,
        status=0,
        size=len(data),
        offset=0,
        epoch=1,
        high_watermark=high_watermark,
        deleted_before=0,
    )
    session.take_answer(SimpleNamespace(results=[result]), data)
    return loop.calls[-1]


async def test_a_node_that_catches_up_waits_when_it_has_a_limit() -> None:
    """Also if this answer is all that it lacks: with many partitions, most answers are."""
    assert await answered(high_watermark=SIZE + 1, bytes_per_s=SIZE) == 1.0
    assert await answered(high_watermark=SIZE, bytes_per_s=SIZE) == 1.0
    assert await answered(high_watermark=SIZE + 1, bytes_per_s=0) == 0.0


async def test_what_nobody_else_has_yet_is_not_slowed() -> None:
    assert await answered(high_watermark=SIZE // 4, bytes_per_s=SIZE) == (SIZE // 4) / SIZE


async def test_a_node_in_sync_is_not_slowed() -> None:
    """The high watermark waits for it."""
    assert await answered(high_watermark=0, bytes_per_s=SIZE) == 0.0
