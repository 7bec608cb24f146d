"""The data directories of one broker belong together, and each partition lies in one of them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from vq.clock import ManualClock
from vq.errors import DirectoryRefused, DiskFull
from vq.store.directory.directories import DataDirectories
from vq.store.directory.directory import DataDirectory, NamesakeFound
from vq.store.directory.identity import IDENTITY_NAME
from vq.store.disk.memory_disk import MemoryDisk

D1, D2, D3 = Path("/d1"), Path("/d2"), Path("/d3")


class Condition:
    """How a data directory is."""

    refusal: DiskFull | None = None
    silent = False


def opened(
    disk: MemoryDisk,
    *paths: Path,
    without: tuple[str, ...] = (),
    conditions: Mapping[Path, Condition] = MappingProxyType({}),
) -> DataDirectories:
    return DataDirectories.open(
        paths, "c", "b1", "n1", disk, without=without, conditions=conditions
    )


def identity(disk: MemoryDisk, path: Path) -> str:
    return disk.read_bytes(path / IDENTITY_NAME).decode()


def begin(disk: MemoryDisk, data: DataDirectories, partition: int, topic: str = "t") -> Path:
    """Have a log of a partition; return its data directory."""
    data.claim(topic, partition, "id")
    directory = data.log_directory(topic, partition)
    disk.mkdir(directory)
    disk.write_atomic(directory / "checkpoint", b"x")
    return data.home(topic, partition)


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()


# Which belong together ----------------------------------------------------------------------------
def test_one_directory_stays_as_an_earlier_vq_knows_it(disk: MemoryDisk) -> None:
    opened(disk, D1).close()
    assert '"v": 2' in identity(disk, D1)


def test_several_know_each_other_and_an_earlier_vq_refuses_each(disk: MemoryDisk) -> None:
    data = opened(disk, D1, D2)
    assert data.paths == [D1, D2]
    data.close()
    assert '"v": 3' in identity(disk, D1)
    assert '"v": 3' in identity(disk, D2)
    again = opened(disk, D1, D2)
    assert again.identity == data.identity
    assert list(again.identity.further.values()) == ["/d2"]


def test_a_directory_that_is_not_given_is_missed(disk: MemoryDisk) -> None:
    """Also one that was emptied, as by a mount that failed; nothing begins in its place."""
    data = opened(disk, D1, D2)
    data.close()
    [missing] = data.identity.further
    with pytest.raises(DirectoryRefused, match=f"id {missing}, last at /d2"):
        opened(disk, D1)
    disk.rename(D2, D3)
    with pytest.raises(DirectoryRefused, match="last at /d2"):
        opened(disk, D1, D2)
    disk.rmtree(D2)
    opened(disk, D1, D3).close()  # it was mounted elsewhere
    assert list(opened(disk, D1, D3).identity.further.values()) == ["/d3"]


def test_a_lost_directory_is_given_up_on_request_and_forgotten(disk: MemoryDisk) -> None:
    data = opened(disk, D1, D2)
    data.close()
    [missing] = data.identity.further
    opened(disk, D1, without=(missing,)).close()
    opened(disk, D1).close()
    assert '"v": 2' in identity(disk, D1)


def test_a_directory_is_added_later(disk: MemoryDisk) -> None:
    opened(disk, D1).close()
    opened(disk, D1, D2).close()
    data = opened(disk, D1, D2, D3)
    assert sorted(data.identity.further.values()) == ["/d2", "/d3"]


def test_a_start_that_dies_while_it_adds_one_is_done_again(disk: MemoryDisk) -> None:
    """The further one names the main one, which does not name it yet."""
    opened(disk, D1).close()
    disk.fail("rename", name=IDENTITY_NAME + ".tmp", after=1)
    with pytest.raises(DirectoryRefused):
        opened(disk, D1, D2)
    assert '"v": 2' in identity(disk, D1)
    opened(disk, D1, D2).close()
    assert '"v": 3' in identity(disk, D1)


def test_one_is_added_because_the_first_is_full(disk: MemoryDisk) -> None:
    """The write that names it finds the space that is kept for such a case."""
    opened(disk, D1).close()
    disk.mkdir(D2)
    disk.write_atomic(D1 / "@reserve", bytes(1_000))
    full = 0

    def spend(write: Callable[[], None], what: str) -> None:
        nonlocal full
        assert "belong together" in what
        try:
            write()
        except OSError:
            full += 1
            disk.unlink(D1 / "@reserve")
            write()

    main = DataDirectory.open(D1, "c", "b1", "n1", disk)
    DataDirectory.open(D2, "c", "b1", "n1", disk, main=main).close()
    main.close()
    disk.capacity_bytes = disk.used_bytes()
    DataDirectories.open([D1, D2], "c", "b1", "n1", disk, spend=spend).close()
    assert full == 1
    assert '"v": 3' in identity(disk, D1)


def test_a_copy_of_a_directory_is_not_used_beside_it(disk: MemoryDisk) -> None:
    """As after a disk was cloned: new partitions would go to either."""
    opened(disk, D1, D2).close()
    disk.mkdir(D3)
    disk.write_atomic(D3 / IDENTITY_NAME, disk.read_bytes(D2 / IDENTITY_NAME))
    with pytest.raises(DirectoryRefused, match="/d2 and /d3 have the same id"):
        opened(disk, D1, D2, D3)
    opened(disk, D1, D3).close()


def test_a_directory_inside_another_one_is_refused(disk: MemoryDisk) -> None:
    """It would be taken for a topic."""
    for paths in ((D1, D1 / "d2"), (D1 / "d2", D1)):
        with pytest.raises(DirectoryRefused, match="/d1/d2 lies in data directory /d1"):
            opened(disk, *paths)
    opened(disk, D1, Path("/d11")).close()


def test_directories_in_the_wrong_place_are_refused(disk: MemoryDisk) -> None:
    opened(disk, D1, D2).close()
    opened(disk, D3).close()
    for paths, why in (
        ((D2, D1), "not its first one"),
        ((D2,), "not its first one"),
        ((D3, D2), "goes with the data directory"),
        ((D1, D2, D3), "is a main data directory"),
    ):
        with pytest.raises(DirectoryRefused, match=why):
            opened(disk, *paths)
    opened(disk, D1, D2).close()  # all locks were given back


def test_each_is_locked(disk: MemoryDisk) -> None:
    opened(disk, D1, D2)
    with pytest.raises(DirectoryRefused):
        opened(disk, D1, D2)


# Homes --------------------------------------------------------------------------------------------
def test_partitions_are_spread_and_found_again(disk: MemoryDisk) -> None:
    data = opened(disk, D1, D2)
    homes = [begin(disk, data, number) for number in range(6)]
    assert sorted(homes) == [D1, D1, D1, D2, D2, D2]
    data.close()
    again = opened(disk, D1, D2)
    assert [again.home("t", number) for number in range(6)] == homes
    [found] = again.topics()
    assert found.partitions == tuple(range(6))


def test_a_new_partition_goes_where_there_is_room(disk: MemoryDisk) -> None:
    conditions = {D1: Condition(), D2: Condition()}
    data = opened(disk, D1, D2, conditions=conditions)
    rooms = {D1: 100, D2: 10}
    disk.free_space = lambda path: (rooms[path], 1_000)  # type: ignore[method-assign]
    assert [begin(disk, data, number) for number in range(3)] == [D1, D1, D1]
    conditions[D1].refusal = DiskFull("for this test")
    assert begin(disk, data, 3) == D2
    assert begin(disk, data, 0) == D1  # one that is there stays


def test_a_partition_that_lies_nowhere_gets_another_home_when_its_own_is_full(
    disk: MemoryDisk,
) -> None:
    conditions = {D1: Condition(), D2: Condition()}
    data = opened(disk, D1, D2, conditions=conditions)
    for number in range(2):
        data.claim("t", number, "id")
    assert [data.home("t", number) for number in range(2)] == [D1, D2]
    begin(disk, data, 1)
    conditions[D1].refusal = DiskFull("for this test")
    data.claim("t", 0, "id")
    assert data.home("t", 0) == D2
    conditions[D1].refusal, conditions[D2].refusal = None, DiskFull("for this test")
    data.claim("t", 1, "id")
    assert data.home("t", 1) == D2


def test_a_topic_is_listed_once_and_not_for_each_of_its_partitions(
    disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(disk, D1, D2).close()
    listed: list[Path] = []
    listdir = disk.listdir

    def noted(path: Path) -> list[str]:
        listed.append(path)
        return listdir(path)

    monkeypatch.setattr(disk, "listdir", noted)
    counts = []
    for partitions in (10, 100):
        data = opened(disk, D1, D2)
        topic = f"t{partitions}"
        for number in range(partitions):
            data.claim(topic, number, "id")
            data.choose_again(topic, number, "id")
        counts.append(sum(path.name == topic for path in listed))
        data.close()
    assert counts[0] == counts[1] <= 4


def test_an_earlier_range_and_what_was_cut_hold_a_partition(disk: MemoryDisk) -> None:
    data = opened(disk, D1, D2)
    data.close()
    for name in ("0.from-500", "1"):
        disk.mkdir(D2 / "t" / name)
        disk.write_atomic(D2 / "t" / name / "0000000000000500.diverged", b"x")
    disk.mkdir(D2 / "t" / "2.damaged")
    disk.write_atomic(D2 / "t" / "2.damaged" / "x", b"x")
    disk.mkdir(D2 / "t" / "3")  # empty
    again = opened(disk, D1, D2)
    assert [again.home("t", number) for number in range(4)] == [D2, D2, D1, D1]


def test_a_partition_in_two_places_is_refused_and_the_others_are_served(disk: MemoryDisk) -> None:
    data = opened(disk, D1, D2)
    begin(disk, data, 0)
    for path in (D1, D2):
        disk.mkdir(path / "t" / "7")
        disk.write_atomic(path / "t" / "7" / "checkpoint", b"x")
    data.close()
    again = opened(disk, D1, D2)
    with pytest.raises(DirectoryRefused, match="/d1/t/7 and /d2/t/7"):
        again.home("t", 7)
    assert again.home("t", 0) == D1


def test_a_namesake_is_found_in_each_of_them(disk: MemoryDisk) -> None:
    data = opened(disk, D1, D2)
    other = DataDirectory.open(D3, "c", "b1", "n1", disk)
    other.claim_topic("t", "old")
    disk.rename(D3 / "t", D2 / "t")
    with pytest.raises(NamesakeFound):
        data.claim("t", 0, "id")
    clock = ManualClock()
    assert data.move_topic("t", "old", clock, keep=True, at=D1) is None
    moved = data.move_topic("t", "old", clock, keep=True, at=D2)
    assert moved is not None
    assert moved.parent == D2 / "@kept"
    assert data.kept() == [moved]
    data.claim("t", 0, "id")


def test_a_topic_goes_to_the_trash_of_each(disk: MemoryDisk) -> None:
    data = opened(disk, D1, D2)
    homes = {begin(disk, data, number) for number in range(2)}
    assert homes == {D1, D2}
    clock = ManualClock()
    for path in data.paths:
        assert data.move_topic("t", "id", clock, keep=False, at=path) is not None
    assert data.topics() == []
    assert data.topic_ids() == {"id"}
    assert data.due_trash(clock, 50) == []
    clock.advance(100)
    due = data.due_trash(clock, 50)
    assert len(due) == 2
    for each in due:
        assert data.remove_trash(each)
    assert data.topic_ids() == set()
