"""Searching the blocks of a log: what is found, what is read, and what could not be."""

import errno
import random
from collections.abc import Sequence

import google_crc32c
import pytest
from support.batches import keyed
from support.store import DIRECTORY, flush, memory_disk, open_log

from vq.clock import ManualClock
from vq.message_filter import Filter
from vq.model import Key
from vq.store.care import key_index, walk
from vq.store.care.key_index_build import KeyIndexBuild, write_key_index
from vq.store.care.search import Search
from vq.store.care.walk import BadRange
from vq.store.care.wanted import Wanted
from vq.store.disk.memory_disk import MemoryDisk
from vq.store.log.log import Log
from vq.store.log.piece import Piece
from vq.store.records.format import CONTROL_BYTES, keys_name
from vq.store.records.record import encode_record

KEYS: Sequence[Key | None] = (None, "a", "b", b"a", 1)
TAGS: Sequence[bytes | None] = (None, b"new", b"old")


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several steps a block, several parts a block, and batches larger than either."""
    monkeypatch.setattr(walk, "STEP_BYTES_MIN", 700)
    monkeypatch.setattr(walk, "STEP_BYTES_MAX", 1_500)
    monkeypatch.setattr(key_index, "PART_BYTES", 600)


class Stored:
    """A log of several blocks, and what is in it."""

    def __init__(self, seed: int = 5, batches: int = 60) -> None:
        rng = random.Random(seed)
        clock = ManualClock()
        self.disk: MemoryDisk = memory_disk()
        self.log: Log = open_log(self.disk, clock=clock)
        self.messages: list[tuple[int, int, Key | None, bytes | None, int]] = []
        self.starts: list[int] = []
        for _ in range(batches):
            clock.advance(1.0)
            records = []
            offset = self.log.end_offset + CONTROL_BYTES
            for _ in range(rng.randint(1, 4)):
                key, tag = rng.choice(KEYS), rng.choice(TAGS)
                number = 1_000 + len(self.messages)
                size = rng.choice([0, 30, 400])
                record = encode_record(number, rng.randbytes(size), tag, keyed(key))
                self.messages.append((offset, number, key, tag, clock.wall_ms()))
                records.append(record)
                offset += len(record)
            body = b"".join(records)
            self.starts.append(
                self.log.append(
                    body,
                    record_count=len(records),
                    records_crc=google_crc32c.value(body),
                    epoch=1,
                )
            )
        flush(self.log)
        self.end = self.log.end_offset

    def index(self) -> None:
        """Make the key indexes of all closed blocks."""
        for block in self.log.closed_blocks:
            build = KeyIndexBuild(
                self.disk,
                Piece(block.path, block.start_offset, block.start_offset, block.end_offset),
            )
            while not build.done:
                build.step()
            assert build.index is not None
            write_key_index(self.disk, DIRECTORY / keys_name(block.start_offset), build.index)

    def overwrite(self, offset: int, data: bytes) -> None:
        """Change bytes of the log behind its back."""
        piece = next(p for p in self.log.reader.pieces(offset, self.end) if offset < p.end)
        file = self.disk.open(piece.path)
        file.pwrite([data], offset - piece.block_start)
        file.close()

    def search(
        self,
        wanted: Wanted,
        begin: int = 0,
        end: int | None = None,
        *,
        messages_max: int = 10_000,
        bytes_max: int = 1 << 30,
    ) -> Search:
        """Search to the end, or until enough was found."""
        last = self.end if end is None else end
        found = Search(
            self.disk,
            DIRECTORY,
            self.log.reader.pieces(begin, self.end),
            wanted,
            begin=begin,
            end=last,
            messages_max=messages_max,
            bytes_max=bytes_max,
        )
        steps = 0
        while not found.done:
            before = found.position
            found.step()
            assert found.position >= before
            steps += 1
            assert steps < 2_000
        found.end()
        found.close()
        return found

    def expected(self, wanted: Wanted, begin: int = 0, end: int | None = None) -> list[int]:
        """The offsets of what should be found."""
        return [
            offset
            for offset, number, key, tag, _ in self.messages
            if begin <= offset < (self.end if end is None else end)
            and wanted.id in (None, number)
            and (wanted.key is None or (type(key) is type(wanted.key) and key == wanted.key))
            and (not wanted.filter or tag in wanted.filter.encoded)
        ]


WISHES = [
    Wanted(),
    Wanted(id=1_042),
    Wanted(id=7),
    Wanted(key="a"),
    Wanted(key=b"a"),
    Wanted(key=1),
    Wanted(key="nobody has it"),
    Wanted(filter=Filter(("new",))),
    Wanted(key="b", filter=Filter(("new", "old"))),
]


@pytest.mark.parametrize("with_index", [False, True])
@pytest.mark.parametrize("wanted", WISHES)
def test_a_search_finds_all_that_is_wanted_and_nothing_else(
    wanted: Wanted, *, with_index: bool
) -> None:
    """With and without key indexes, from any place to any other."""
    stored = Stored()
    if with_index:
        stored.index()
    rng = random.Random(1)
    places = [0, stored.end, *rng.sample([each[0] for each in stored.messages], 6)]
    for begin in places:
        for end in places:
            if begin < end:
                found = stored.search(wanted, begin, end)
                offsets = [each.offset for each in found.found]
                assert offsets == stored.expected(wanted, begin, end)
                assert (found.position, found.damage, found.unfit) == (end, [], [])


def test_a_record_found_is_whole_and_has_the_time_of_its_batch() -> None:
    stored = Stored()
    ((offset, time_ms, record),) = stored.search(Wanted(id=1_042)).found
    assert (offset, 1_042, *stored.messages[42][2:4], time_ms) == stored.messages[42]
    assert record == bytes(stored.log.reader.read(offset, len(record), stored.end))


def test_what_an_index_rules_out_is_not_read() -> None:
    """Read and skipped bytes together are the whole range."""
    stored = Stored(batches=200)
    without = stored.search(Wanted(id=1_042))
    assert (without.covered.read_bytes, without.covered.skipped_bytes) == (stored.end, 0)
    stored.index()
    found = stored.search(Wanted(id=1_042))
    assert [each.offset for each in found.found] == [stored.messages[42][0]]
    assert found.covered.read_bytes + found.covered.skipped_bytes == stored.end
    assert found.covered.read_bytes < stored.end // 4
    times = {(each.covered.first_ms, each.covered.last_ms) for each in (without, found)}
    assert times == {(stored.messages[0][4], stored.messages[-1][4])}


def test_without_a_wish_no_index_is_looked_at() -> None:
    stored = Stored()
    stored.index()
    assert stored.search(Wanted()).covered.skipped_bytes == 0


@pytest.mark.parametrize("with_index", [False, True])
def test_a_search_goes_on_where_one_stopped(*, with_index: bool) -> None:
    """Nothing is found twice, nothing is missed, however little is taken at a time."""
    stored = Stored()
    if with_index:
        stored.index()
    for wanted in WISHES:
        for messages_max, bytes_max in ((1, 1 << 30), (3, 1 << 30), (1_000, 1), (1_000, 900)):
            offsets, position = [], 0
            while position < stored.end:
                found = stored.search(
                    wanted, position, messages_max=messages_max, bytes_max=bytes_max
                )
                assert len(found.found) <= messages_max
                sizes = [len(each.record) for each in found.found]
                assert len(sizes) <= 1 or sum(sizes) <= bytes_max
                assert found.position > position
                offsets += [each.offset for each in found.found]
                position = found.position
            assert offsets == stored.expected(wanted)


@pytest.mark.parametrize("with_index", [False, True])
def test_damage_is_told_and_the_search_goes_on_behind_it(*, with_index: bool) -> None:
    """An index never hides damage from a search that must read it, nor a message behind it."""
    stored = Stored()
    if with_index:
        stored.index()
    number = 30
    start, end = stored.starts[number], stored.starts[number + 1]
    stored.overwrite(start + CONTROL_BYTES + 30, b"\0\1\2")
    found = stored.search(Wanted())
    assert [(each.start, each.end) for each in found.damage] == [(start, end)]
    assert "CRC" in found.damage[0].why
    offsets = [each.offset for each in found.found]
    assert offsets == [at for at in stored.expected(Wanted()) if not start <= at < end]
    assert found.position == stored.end


def test_what_an_index_rules_out_counts_as_searched_though_it_was_damaged_since() -> None:
    """The index was made when the bytes were intact."""
    stored = Stored()
    stored.index()
    stored.overwrite(stored.starts[3] + CONTROL_BYTES + 30, b"\0\1\2")
    found = stored.search(Wanted(key="nobody has it"))
    assert found.damage == []
    assert [each.offset for each in stored.search(Wanted(key="nobody has it")).found] == []


def test_damage_on_both_sides_of_a_batch_is_told_apart() -> None:
    stored = Stored()
    for number in (10, 12):
        stored.overwrite(stored.starts[number] + 9, b"\xff")
    ranges = [(each.start, each.end) for each in stored.search(Wanted(id=1)).damage]
    starts = stored.starts
    assert ranges == [(starts[10], starts[11]), (starts[12], starts[13])]


def test_damage_is_told_only_within_the_range() -> None:
    stored = Stored()
    stored.overwrite(stored.starts[10] + 9, b"\xff")
    stored.overwrite(stored.starts[40] + 9, b"\xff")
    middle = stored.starts[10] + CONTROL_BYTES
    found = stored.search(Wanted(), middle, stored.starts[40])
    assert [(each.start, each.end) for each in found.damage] == [(middle, stored.starts[11])]


def test_damage_whose_end_was_not_reached_is_told_when_a_search_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What lies before its position was searched or is told, wherever it stops."""
    monkeypatch.setattr(walk, "STEP_BYTES_MIN", 100)
    monkeypatch.setattr(walk, "STEP_BYTES_MAX", 100)
    stored = Stored()
    bad = stored.starts[10]
    stored.overwrite(bad + 9, b"\xff")
    found = Search(
        stored.disk,
        DIRECTORY,
        stored.log.reader.pieces(0, stored.end),
        Wanted(),
        begin=0,
        end=stored.end,
        messages_max=1_000,
        bytes_max=1 << 30,
    )
    while found.position <= bad:
        found.step()
    assert found.damage == []
    found.end()
    assert [(each.start, each.end) for each in found.damage] == [(bad, found.position)]
    assert found.position < stored.starts[11]
    found.close()


def test_a_block_that_is_gone_or_cannot_be_read_is_told() -> None:
    stored = Stored()
    first, second, *_ = stored.log.reader.pieces(0, stored.end)
    stored.disk.unlink(second.path)
    found = stored.search(Wanted())
    assert [each[:3] for each in found.damage] == [(second.start, second.end, second.path)]
    assert "cannot be read" in found.damage[0].why
    expected = [at for at in stored.expected(Wanted()) if not second.start <= at < second.end]
    assert [each.offset for each in found.found] == expected
    assert first.end == second.start


def test_an_error_of_the_medium_gives_up_some_bytes_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored = Stored()
    real = type(stored.disk.open(stored.log.reader.pieces(0, 10)[0].path)).pread
    bad = stored.starts[3]

    def pread(self, position: int, length: int) -> bytes:  # type: ignore[no-untyped-def]
        if position <= bad < position + length:
            raise OSError(errno.EIO, "input/output error")
        return real(self, position, length)

    monkeypatch.setattr("vq.store.disk.memory_disk.MemoryFile.pread", pread)
    found = stored.search(Wanted())
    assert found.damage
    assert all("input/output error" in each.why for each in found.damage)
    covered = {
        at
        for at in stored.expected(Wanted())
        if any(each.start <= at < each.end for each in found.damage)
    }
    assert {each.offset for each in found.found} | covered == set(stored.expected(Wanted()))


def test_a_block_that_cannot_be_reached_now_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known of it; what lies around it is searched."""
    stored = Stored()
    _, second, *_ = stored.log.reader.pieces(0, stored.end)
    real = Piece.open

    def open_some(piece: Piece, disk: MemoryDisk):  # type: ignore[no-untyped-def]
        if piece.block_start == second.block_start:
            raise OSError(errno.EHOSTUNREACH, "no route")
        return real(piece, disk)

    monkeypatch.setattr(Piece, "open", open_some)
    begin = stored.starts[3]
    found = stored.search(Wanted(), begin)
    assert [each[:2] for each in found.unreachable] == [(second.start, second.end)]
    assert found.unreachable[0].why == "no route"
    assert found.damage == []
    assert found.position == stored.end
    assert [each.offset for each in found.found] == [
        at for at in stored.expected(Wanted(), begin) if not second.start <= at < second.end
    ]
    middle = second.start + 10
    inside = stored.search(Wanted(), middle, second.end - 10)
    assert [each[:2] for each in inside.unreachable] == [(middle, second.end - 10)]


def test_an_index_that_does_not_fit_is_not_used_and_is_told() -> None:
    """Damaged, of another block, or of a block that has changed since."""
    stored = Stored()
    stored.index()
    blocks = stored.log.closed_blocks
    paths = [DIRECTORY / keys_name(each.start_offset) for each in blocks]
    data = [stored.disk.read_bytes(path) for path in paths]
    write_key_index(stored.disk, paths[0], data[1])
    write_key_index(stored.disk, paths[1], data[1][:-1] + bytes([data[1][-1] ^ 1]))
    write_key_index(stored.disk, paths[2], b"")
    last = max(at for at in stored.starts if at < blocks[3].end_offset)
    stored.overwrite(last + 8 + 12 + 4, b"\xff")
    found = stored.search(Wanted(id=7))
    assert found.unfit == [each.start_offset for each in blocks[:4]]


def test_a_damaged_block_gets_no_index() -> None:
    stored = Stored()
    block = stored.log.closed_blocks[0]
    stored.overwrite(stored.starts[2] + CONTROL_BYTES + 21, b"\xff\xff\xff")
    build = KeyIndexBuild(stored.disk, Piece(block.path, 0, 0, block.end_offset))
    while not build.done:
        build.step()
    assert build.index is None


def test_a_part_of_damage_has_the_words_of_the_damage() -> None:
    """``BadRange`` of a search is that of a walk."""
    stored = Stored()
    stored.overwrite(stored.starts[0], b"\xff" * 20)
    (only,) = stored.search(Wanted(), 0, stored.starts[1]).damage
    assert isinstance(only, BadRange)
    assert only.why == "its control record is damaged"
