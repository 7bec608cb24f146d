"""The data directory: topics, trash, and who may open it."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from vq.clock import Clock, ManualClock
from vq.errors import DirectoryRefused, InvalidArgument
from vq.store.directory.directory import DataDirectory, LocalTopic, NamesakeFound, why_gone
from vq.store.directory.identity import IDENTITY_NAME
from vq.store.disk.disk import Disk
from vq.store.disk.memory_disk import MemoryDisk, keep_none
from vq.store.disk.real_disk import RealDisk
from vq.store.log.begun import BegunLog
from vq.store.log.checkpoint import Checkpoint
from vq.store.records.checked_text import encode_text

HOME = Path("/srv/vq")


def open_directory(disk: Disk, path: Path = HOME) -> DataDirectory:
    return DataDirectory.open(path, cluster="c", group="b1", node="n1", disk=disk)


def test_a_new_directory_is_made_durably() -> None:
    """Parents, lock and identity; after a power cut it is the same one."""
    disk = MemoryDisk()
    first = open_directory(disk)
    again = open_directory(disk.crash(keep_none))
    assert again.identity == first.identity


def test_two_processes_cannot_have_it(tmp_path: Path) -> None:
    """The second is told who has it; closing lets it in."""
    first = open_directory(RealDisk(), tmp_path / "data")
    with pytest.raises(DirectoryRefused, match="another broker uses this data directory"):
        open_directory(RealDisk(), tmp_path / "data")
    first.close()
    first.close()
    open_directory(RealDisk(), tmp_path / "data").close()


def test_a_directory_that_is_removed_or_moved_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "data"
    data = open_directory(RealDisk(), path)
    own_id = data.identity.id
    assert why_gone(path, RealDisk(), own_id) == ""
    path.rename(tmp_path / "elsewhere")
    assert why_gone(path, RealDisk(), own_id) == "it was removed or unmounted"
    data.close()


def test_another_directory_in_the_place_of_one_is_noticed(tmp_path: Path) -> None:
    """Two disks that were swapped while the broker runs."""
    path, other = tmp_path / "data", tmp_path / "other"
    data, stranger = open_directory(RealDisk(), path), open_directory(RealDisk(), other)
    path.rename(tmp_path / "away")
    other.rename(path)
    why = f"another one, with the id {stranger.identity.id}, is in its place"
    assert why_gone(path, RealDisk(), data.identity.id) == why
    data.close()
    stranger.close()


@pytest.mark.parametrize("kind", ["exists", "read_bytes"])
def test_a_directory_on_a_file_system_that_fails_is_gone(kind: str) -> None:
    """A lack of file descriptors says nothing of it, nor does a damaged identity."""
    disk = MemoryDisk()
    data = open_directory(disk)
    own_id = data.identity.id
    disk.fail(kind, name=IDENTITY_NAME)
    assert why_gone(HOME, disk, own_id).startswith("it cannot be read: ")
    disk.fail("read_bytes", name=IDENTITY_NAME, error=errno.EMFILE)
    with pytest.raises(OSError, match="told to fail"):
        why_gone(HOME, disk, own_id)
    disk.write_atomic(HOME / IDENTITY_NAME, b"?")
    assert why_gone(HOME, disk, own_id) == ""


def test_nothing_is_made_in_the_place_of_a_directory_that_is_gone() -> None:
    """Neither a topic nor a list or mark: all would be hidden when it is mounted again."""
    disk = MemoryDisk()
    data = open_directory(disk)
    disk.rename(HOME, Path("/away"))
    disk.mkdir(HOME)  # what it was mounted on
    data.begun.note(BegunLog("id", "0", 0))
    for work in (
        lambda: data.claim_topic("t", "id"),
        data.begun.save,
        data.unflushed.mark,
        data.unflushed.doubt,
    ):
        with pytest.raises((FileNotFoundError, DirectoryRefused), match="is gone"):
            work()
    assert disk.listdir(HOME) == []
    disk.rmtree(HOME)
    disk.rename(Path("/away"), HOME)
    data.claim_topic("t", "id")
    data.begun.save()
    data.unflushed.mark()
    data.close()
    again = open_directory(disk)
    assert again.begun.of_partition("id", 0) == {"0": 0}
    assert again.stored_topic_id("t") == "id"


def test_a_refused_directory_is_not_left_locked() -> None:
    """The right broker can open it afterwards."""
    disk = MemoryDisk()
    open_directory(disk).close()
    with pytest.raises(DirectoryRefused):
        DataDirectory.open(HOME, cluster="other", group="b1", node="n1", disk=disk)
    open_directory(disk).close()


def test_a_claimed_topic_keeps_its_id() -> None:
    """Claimed again it stays; the log's directory comes with the first append."""
    disk = MemoryDisk()
    data = open_directory(disk)
    for _ in range(2):
        data.claim_topic("orders", "id1")
    assert data.log_directory("orders", 3) == HOME / "orders" / "3"
    assert not disk.exists(HOME / "orders" / "3")
    assert data.topics() == [LocalTopic("orders", "id1", ())]
    assert DataDirectory.topics(open_directory(disk.crash(keep_none))) == data.topics()


def moved(data: DataDirectory, topic: str, clock: Clock, *, keep: bool = False) -> str:
    path = data.move_topic(topic, data.stored_topic_id(topic), clock, keep=keep)
    assert path is not None
    return path.name


def test_data_of_a_namesake_are_moved_out_of_the_way_first() -> None:
    """Nothing is deleted, two generations do not collide, and it is told whose data they are."""
    disk, clock = MemoryDisk(), ManualClock(wall_ms=1_763_805_360_000)
    data = open_directory(disk)
    data.claim_topic("orders", "id1")
    disk.mkdir(HOME / "orders" / "0")
    with pytest.raises(NamesakeFound, match="id1") as found:
        data.claim_topic("orders", "id2")
    assert found.value.topic_id == "id1"
    assert moved(data, "orders", clock) == "orders.id1.20251122T095600Z"
    for topic_id in ("id2", "id1"):
        data.claim_topic("orders", topic_id)
        disk.mkdir(HOME / "orders" / "0")
        moved(data, "orders", clock)
    assert disk.listdir(HOME / "@trash") == [
        "orders.id1.20251122T095600Z",
        "orders.id1.20251122T095600Z-1",
        "orders.id2.20251122T095600Z",
    ]
    assert data.topics() == []


def due(data: DataDirectory, clock: ManualClock, keep_s: float) -> list[str]:
    """Return the names that may be removed from the trash."""
    return [each.path.name for each in data.due_trash(clock, keep_s)]


def test_what_lies_in_the_trash_is_due_after_a_while() -> None:
    disk, clock = MemoryDisk(), ManualClock()
    data = open_directory(disk)
    names = []
    for topic in ("old", "new"):
        data.claim_topic(topic, "id1")
        disk.mkdir(HOME / topic / "0")
        names.append(moved(data, topic, clock))
        assert due(data, clock, 20) == []
        clock.advance(9)
    assert due(data, clock, 20) == []
    clock.advance(3)
    (first,) = data.due_trash(clock, 20)
    assert (first.path.name, first.topic_id) == (names[0], "id1")
    data.remove_trash(first)
    assert disk.listdir(HOME / "@trash") == [names[1]]
    clock.advance(9)
    assert due(data, clock, 20) == [names[1]]


@pytest.mark.parametrize("jump_s", [10**6, -(10**6)], ids=["ahead", "back"])
def test_a_clock_that_is_set_makes_nothing_in_the_trash_older(jump_s: int) -> None:
    """Nor does a name of long ago, as of a clock that was behind: the broker saw it just now."""
    disk, clock = MemoryDisk(), ManualClock()
    data = open_directory(disk)
    data.claim_topic("t", "id1")
    moved(data, "t", clock)
    disk.mkdir(HOME / "@trash" / "u.id2.20010101T000000Z")
    assert due(data, clock, 20) == []
    clock.step_wall_ms(jump_s * 1000)
    assert due(data, clock, 20) == []
    clock.advance(20)
    assert len(due(data, clock, 20)) == 2


@pytest.mark.parametrize(
    ("name", "topic_id"),
    [
        ("orders", ""),
        ("orders.id1", ""),
        ("a.b.c.20251122T095600Z", "c"),
        ("a.b.20251122T095600Z-3", "b"),
    ],
)
def test_the_name_in_the_trash_tells_the_id(name: str, topic_id: str) -> None:
    """What an operator put there has none, and nothing says that it may be removed."""
    disk, clock = MemoryDisk(), ManualClock()
    data = open_directory(disk)
    disk.mkdir(HOME / "@trash" / name)
    assert [each.topic_id for each in data.due_trash(clock, 0)] == [topic_id]


def test_what_is_kept_is_never_purged() -> None:
    """It has a place of its own."""
    disk, clock = MemoryDisk(), ManualClock()
    data = open_directory(disk)
    assert data.kept() == []
    data.claim_topic("orders", "id1")
    name = moved(data, "orders", clock, keep=True)
    clock.advance(10**6)
    assert due(data, clock, 0) == []
    assert data.kept() == [HOME / "@kept" / name]


def test_every_damaged_byte_of_a_topics_file_is_noticed() -> None:
    """Nothing is moved because of it; the message names the file and what to write."""
    disk, clock = MemoryDisk(), ManualClock()
    data = open_directory(disk)
    data.claim_topic("orders", "id1")
    disk.mkdir(HOME / "orders" / "0")
    data.close()
    file = HOME / "orders" / "topic.json"
    text = disk.read_bytes(file)
    for at in range(len(text) - 1):
        damaged = bytearray(text)
        damaged[at] ^= 1
        disk.write_atomic(file, bytes(damaged))
        data = open_directory(disk)
        said = r"topic.json (has version|cannot be)"
        with pytest.raises(DirectoryRefused, match=said) as refused:
            data.claim_topic("orders", "id1")
        assert not isinstance(refused.value, NamesakeFound)
        with pytest.raises(DirectoryRefused):
            data.move_topic("orders", "id1", clock, keep=False)
        assert data.topics() == [LocalTopic("orders", "", (0,))]
        data.close()
    disk.write_atomic(file, b'{"v": 1, "topic": "orders", "id": "id1"}')  # as it was told
    open_directory(disk).claim_topic("orders", "id1")


def test_a_topics_file_that_is_missing_beside_data_is_refused() -> None:
    """It cannot be told whose data these are. Without data it is a claim that was interrupted."""
    disk = MemoryDisk()
    data = open_directory(disk)
    disk.mkdir(HOME / "orders" / "0")
    with pytest.raises(DirectoryRefused, match="missing, but there are data"):
        data.claim_topic("orders", "id1")
    disk.rmtree(HOME / "orders" / "0")
    data.claim_topic("orders", "id1")
    assert data.topics() == [LocalTopic("orders", "id1", ())]


def test_a_topics_file_of_another_topic_is_refused() -> None:
    """Copied to the wrong place."""
    disk = MemoryDisk()
    data = open_directory(disk)
    data.claim_topic("orders", "id1")
    disk.rename(HOME / "orders", HOME / "clicks")
    with pytest.raises(DirectoryRefused, match="it names topic 'orders'"):
        data.claim_topic("clicks", "id1")


def test_a_topics_file_that_contradicts_a_checkpoint_is_refused() -> None:
    """A file of the first version has no checksum: a changed id alone moves nothing away."""
    disk = MemoryDisk()
    data = open_directory(disk)
    data.claim_topic("orders", "id1")
    disk.mkdir(HOME / "orders" / "0")
    checkpoint = Checkpoint(topic_id="id1", start_offset=0, offset=0).to_bytes()
    disk.write_atomic(HOME / "orders" / "0" / "checkpoint", checkpoint)
    disk.mkdir(HOME / "orders" / "1")
    disk.write_atomic(HOME / "orders" / "1" / "checkpoint", b"unreadable")
    disk.write_atomic(HOME / "orders" / "topic.json", b'{"v": 1, "topic": "orders", "id": "id0"}')
    with pytest.raises(DirectoryRefused, match=r"orders/0/checkpoint names id1") as refused:
        open_again(disk, data).claim_topic("orders", "id1")
    assert not isinstance(refused.value, NamesakeFound)


def open_again(disk: MemoryDisk, data: DataDirectory) -> DataDirectory:
    data.close()
    return open_directory(disk)


def test_a_topic_of_a_newer_format_is_refused() -> None:
    """And not moved away."""
    disk = MemoryDisk()
    data = open_directory(disk)
    disk.mkdir(HOME / "orders")
    text = encode_text(3, {"topic": "orders", "id": "id1"})
    disk.write_atomic(HOME / "orders" / "topic.json", text)
    with pytest.raises(DirectoryRefused, match="newer"):
        data.claim_topic("orders", "id1")
    assert disk.exists(HOME / "orders")


def test_a_file_of_a_topics_name_is_left_alone() -> None:
    """Whatever it is, it is nobody's topic."""
    disk = MemoryDisk()
    data = open_directory(disk)
    disk.write_atomic(HOME / "orders", b"mine")
    with pytest.raises(DirectoryRefused, match="is a file"):
        data.claim_topic("orders", "id1")
    assert disk.read_bytes(HOME / "orders") == b"mine"


def test_data_of_another_id_are_not_moved() -> None:
    """Whoever deletes a topic says which one; the data of its namesake stay."""
    disk = MemoryDisk()
    data = open_directory(disk)
    assert data.stored_topic_id("orders") == ""
    data.claim_topic("orders", "id2")
    assert data.move_topic("orders", "id1", ManualClock(), keep=False) is None
    assert data.stored_topic_id("orders") == "id2"
    data.close()
    data = open_directory(disk)  # without what was remembered
    assert data.move_topic("orders", "id1", ManualClock(), keep=True) is None
    assert data.topics() == [LocalTopic("orders", "id2", ())]
    assert data.stored_topic_id("../orders") == ""


def test_moving_what_is_not_there_is_nothing() -> None:
    """A deleted topic may never have had data here."""
    data = open_directory(MemoryDisk())
    assert data.move_topic("orders", "id1", ManualClock(), keep=False) is None


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "@trash", "x" * 201])
def test_names_that_are_no_names_never_reach_the_disk(name: str) -> None:
    """Whatever the caller forgot to check."""
    data = open_directory(MemoryDisk())
    for call in (
        lambda: data.claim_topic(name, "id"),
        lambda: data.log_directory(name, 0),
        lambda: data.move_topic(name, "id", ManualClock(), keep=False),
    ):
        with pytest.raises(InvalidArgument):
            call()


def test_what_is_no_topic_is_not_listed() -> None:
    """The trash, the file system's own directory, stray files."""
    disk = MemoryDisk()
    data = open_directory(disk)
    data.claim_topic("orders", "id1")
    data.move_topic("orders", "id1", ManualClock(), keep=False)
    disk.mkdir(HOME / "lost+found")
    disk.write_atomic(HOME / "notes", b"")
    assert data.topics() == []


class NoLock(RealDisk):
    """A file system that takes no new file."""

    def lock(self, path: Path) -> Any:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))


@pytest.mark.parametrize(
    ("place", "disk", "kind"),
    [
        ("/proc/nope", RealDisk(), DirectoryRefused),
        ("file/sub", RealDisk(), InvalidArgument),
        ("file", RealDisk(), InvalidArgument),
        ("read only", NoLock(), DirectoryRefused),
    ],
    ids=["not made", "below a file", "a file", "read only"],
)
def test_a_directory_that_the_system_refuses_is_named(
    tmp_path: Path, place: str, disk: Disk, kind: type[Exception]
) -> None:
    """The error says which directory, why, and what to give instead."""
    (tmp_path / "file").touch()
    path = tmp_path / place
    with pytest.raises(kind, match=r"cannot be used: .*; give one") as refused:
        open_directory(disk, path)
    assert str(path) in str(refused.value)
