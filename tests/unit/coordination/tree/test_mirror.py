"""A mirror reads once, then what is marked; it loses no mark and no name, and tells each change."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from vq.coordination.tree import mirror as mirror_module
from vq.coordination.tree.coordinator import ConnectionLost, NoNode, Watch
from vq.coordination.tree.memory import MemoryCoordinator, MemoryEnsemble
from vq.coordination.tree.mirror import Mirror

pytestmark = pytest.mark.virtual_time


class Words:
    """Mirrors the words below ``top``; notes what it is told.

    Attributes:
        slow: Awaited by each read before it returns.
        broken: Raised by each read.
    """

    def __init__(self, client: MemoryCoordinator, *, listed: bool = True) -> None:
        self.client = client
        self.hints = 0
        self.told: list[tuple[str, bytes | None]] = []
        self.reads: list[str] = []
        self.slow: Callable[[str], Awaitable[None]] | None = None
        self.broken: Exception | None = None
        self.mirror = Mirror(
            client,
            "top",
            self.read,
            listed=listed,
            on_hint=self.hinted,
            on_value=lambda name, value: self.told.append((name, value)),
        )

    def hinted(self) -> None:
        self.hints += 1

    async def read(self, name: str, watch: Watch) -> bytes | None:
        self.reads.append(name)
        if self.broken is not None:
            raise self.broken
        try:
            value = (await self.client.get(f"top/{name}", watch=watch)).data
        except NoNode:
            await self.client.exists(f"top/{name}", watch=watch)
            value = None
        if self.slow is not None:
            await self.slow(name)
        return value

    async def refreshed(self) -> dict[str, bytes]:
        await self.client.sync()
        await self.mirror.refresh()
        return dict(self.mirror.values)


async def write(client: MemoryCoordinator, name: str, value: bytes) -> None:
    try:
        await client.create(f"top/{name}", value, parents=True)
    except Exception:
        await client.set(f"top/{name}", value)


async def test_each_name_is_read_once_then_what_changed(client, other) -> None:
    """Names come, change and go; each change is told once."""
    words = Words(client)
    assert await words.refreshed() == {}
    await write(other, "a", b"1")
    await write(other, "b", b"2")
    assert await words.refreshed() == {"a": b"1", "b": b"2"}
    assert words.hints
    assert words.told == [("a", b"1"), ("b", b"2")]
    del words.reads[:], words.told[:]
    assert await words.refreshed() == {"a": b"1", "b": b"2"}
    assert words.reads == []
    await write(other, "b", b"3")
    await other.delete("top/a")
    assert await words.refreshed() == {"b": b"3"}
    assert sorted(words.told) == [("a", None), ("b", b"3")]
    assert words.reads == ["b"]


async def test_names_that_were_added_are_watched_for_before_they_are_there(client, other) -> None:
    """No other name is read, and the names are not listed."""
    await write(other, "z", b"0")
    words = Words(client, listed=False)
    assert await words.mirror.read("a") is None
    words.mirror.add("b")
    assert await words.refreshed() == {}
    for name in ("a", "b", "c"):
        await write(other, name, b"1")
    assert await words.refreshed() == {"a": b"1", "b": b"1"}
    words.mirror.add("b")
    del words.reads[:]
    await words.refreshed()
    assert words.reads == []


async def test_a_listed_mirror_forgets_a_name_that_is_not_there(ensemble, client) -> None:
    """Whoever asks for invented names does not have them read again and again."""
    words = Words(client)
    await words.refreshed()
    for number in range(5):
        words.mirror.mark(f"invented{number}")
    assert await words.refreshed() == {}
    assert len(words.reads) == 5
    ensemble.blink(client)
    await words.refreshed()
    assert len(words.reads) == 5
    assert words.told == []


async def test_what_is_not_kept_is_forgotten(ensemble, client, other) -> None:
    """Also if it is being read just now: the answer is not taken."""
    for name in ("a", "b"):
        await write(other, name, b"1")
    words = Words(client, listed=False)
    for name in ("a", "b"):
        await words.mirror.read(name)
    answered, gate = asyncio.Event(), asyncio.Event()

    async def hold(_: str) -> None:
        answered.set()
        await gate.wait()

    words.slow = hold
    late = asyncio.ensure_future(words.mirror.read("b"))
    await answered.wait()
    words.mirror.keep({"a"})
    gate.set()
    await late
    assert dict(words.mirror.values) == {"a": b"1"}
    assert words.told[-1] == ("b", None)
    words.slow = None
    ensemble.blink(client)
    del words.reads[:]
    await words.refreshed()
    assert words.reads == ["a"]


async def test_an_older_answer_does_not_replace_a_newer_one(client, other) -> None:
    """Of one name there is one read at a time; others are read meanwhile."""
    await write(other, "a", b"1")
    await write(other, "b", b"1")
    words = Words(client, listed=False)
    answered, gate = asyncio.Event(), asyncio.Event()

    async def hold_the_first(name: str) -> None:
        if name == "a" and words.reads.count("a") == 1:
            answered.set()
            await gate.wait()

    words.slow = hold_the_first
    first = asyncio.ensure_future(words.mirror.read("a"))
    await answered.wait()
    await write(other, "a", b"2")
    second = asyncio.ensure_future(words.mirror.read("a"))
    assert await words.mirror.read("b") == b"1"
    assert words.reads == ["a", "b"]
    gate.set()
    assert (await first, await second) == (b"1", b"2")
    assert words.mirror.values["a"] == b"2"


async def test_a_read_that_fails_leaves_its_mark(client, other) -> None:
    await write(other, "a", b"1")
    words = Words(client)
    words.broken = ConnectionLost("no answer")
    for _ in range(2):
        with pytest.raises(ConnectionLost):
            await words.refreshed()
    words.broken = None
    assert await words.refreshed() == {"a": b"1"}


async def test_a_list_that_fails_is_read_again(
    ensemble: MemoryEnsemble, client: MemoryCoordinator, other: MemoryCoordinator
) -> None:
    await write(other, "a", b"1")
    words = Words(client)
    ensemble.lose_next_reply(client)
    with pytest.raises(ConnectionLost):
        await words.mirror.refresh()
    assert await words.refreshed() == {"a": b"1"}


async def test_a_second_lost_connection_is_heard_before_all_is_read_again(
    ensemble, client, other
) -> None:
    """The first one marked everything; what was read since lost its watch in the second one."""
    await write(other, "a", b"1")
    await write(other, "b", b"1")
    words = Words(client)
    await words.refreshed()
    ensemble.blink(client)
    await client.sync()
    assert await words.mirror.read("a") == b"1"
    ensemble.blink(client)
    await client.sync()
    await write(other, "a", b"2")
    assert await words.refreshed() == {"a": b"2", "b": b"1"}


async def test_a_thousand_watches_that_go_at_once_are_one_doubt(
    ensemble, client, other, monkeypatch
) -> None:
    """Each watch says that the connection went; to mark everything for each would be quadratic."""
    for number in range(8):
        await write(other, str(number), b"")
    words = Words(client)
    await words.refreshed()
    marked = []

    class Marks(set):
        def __ior__(self, names):
            marked.append(names)
            return self

    monkeypatch.setattr(words.mirror, "_marked", Marks())
    ensemble.blink(client)
    assert len(marked) == 1


async def test_audits_go_through_all_names_by_and_by(ensemble, client, other, monkeypatch) -> None:
    """Should a hint get lost after all."""
    monkeypatch.setattr(mirror_module, "AUDITED_AT_ONCE", 3)
    for number in range(8):
        await write(other, str(number), b"1")
    words = Words(client)
    await words.refreshed()
    ensemble.hold_events(client)
    for number in range(9):
        await write(other, str(number), b"2")
    await other.sync()
    ensemble.release_events(client, drop=True)
    seen = []
    for _ in range(3):
        words.mirror.audit()
        found = await words.refreshed()
        seen.append(sum(value == b"2" for value in found.values()))
    assert seen == [4, 7, 9]  # the new one at once


async def test_what_cannot_be_read_may_be_a_value(client, other) -> None:
    """So one of them does not keep the others from being read."""
    await write(other, "a", b"1")
    await write(other, "b", b"1")
    error = ValueError("odd")

    async def read(name: str, _: Watch) -> ValueError | str:
        return error if name == "a" else name

    mirror = Mirror(client, "top", read)
    await mirror.refresh()
    assert dict(mirror.values) == {"a": error, "b": "b"}


async def test_a_reader_may_keep_what_it_knows(ensemble, client, other) -> None:
    """Values that never change are not read again, whatever is in doubt."""
    await write(other, "a", b"1")
    reads: list[str] = []

    async def read(name: str, _: Watch) -> bytes | None:
        if name in mirror.values:
            return mirror.values[name]
        reads.append(name)
        return (await client.get(f"top/{name}")).data

    mirror = Mirror(client, "top", read)
    await mirror.refresh()
    ensemble.blink(client)
    await write(other, "b", b"2")
    await client.sync()
    mirror.audit()
    await mirror.refresh()
    assert dict(mirror.values) == {"a": b"1", "b": b"2"}
    assert reads == ["a", "b"]
