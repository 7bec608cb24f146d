"""Damage in the files of a local queue: what is known to be lost is set aside, the rest goes on."""

import shutil
from pathlib import Path

import pytest
from support.local_queue import contents, taken

from vq.errors import DirectoryRefused
from vq.local import LocalQueue, LocalQueueConfig
from vq.testing.waiting import block_until


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "jobs"


#: Between damage and the end of a log.
FAR = bytes(300_000)


def damage(directory: Path, log: str, content: bytes, before: int = 0) -> None:
    """Change a byte of a content, or so many bytes before it, in the block of a log."""
    (block,) = (each for each in (directory / log).iterdir() if content in each.read_bytes())
    data = bytearray(block.read_bytes())
    at = data.index(content) - before
    data[at] ^= 0x55
    block.write_bytes(data)


@pytest.mark.parametrize("memory_items", [2, 10_000], ids=["read-later", "read-at-open"])
@pytest.mark.parametrize(
    ("before", "lost"),
    [(0, [13]), (20, [13, 14, 15]), (20 + 88, [16, 17, 18, 19])],
    ids=["content", "length", "batch"],
)
def test_what_cannot_be_read_is_set_aside_and_the_lane_goes_on(
    directory: Path, memory_items: int, before: int, lost: list[int]
) -> None:
    """A damaged length hides the rest of its batch, a damaged head of a batch all of it."""
    contents_put = [b"message-%d" % number for number in range(10, 20)]
    config = LocalQueueConfig(memory_items=memory_items)
    with LocalQueue(directory, config) as queue:
        queue.put_many(contents_put[:6])
        queue.put_many(contents_put[6:])
        queue.put(FAR)
        queue.put(FAR)
    damaged = b"message-%d" % lost[0]
    damage(directory, "lane-0", damaged, before)
    for _ in range(2):  # what was set aside stays known
        with LocalQueue(directory, config) as queue:
            *left, one, other = [each.message.content for each in queue.list()]
            assert one == other == FAR
            assert left == [each for each in contents_put if int(each[8:]) not in lost]
            (found,) = queue.damaged()
            assert (found.log, found.number, found.messages) == ("lane-0", lost[0] - 10, len(lost))
            assert damaged[:3] in found.path.read_bytes() or not before
            assert queue.metrics().damaged == len(lost)
    with LocalQueue(directory, config) as queue:
        assert contents(queue) == [*left, FAR, FAR]
        assert len(queue) == 0
        assert queue.put(b"next")
        assert contents(queue) == [b"next"]


def test_what_waits_for_a_time_and_cannot_be_read_is_set_aside(directory: Path) -> None:
    config = LocalQueueConfig(retries=0, retry_s=0.05)
    with LocalQueue(directory, config) as queue:
        queue.put(b"far away", delay_s=3600)
        queue.put(FAR, delay_s=3600)
        queue.put(FAR, delay_s=3600)
    damage(directory, "later", b"far away")
    with LocalQueue(directory, config) as queue:
        assert [each.message.content for each in queue.list()] == [FAR, FAR]
        assert queue.requeue() == 3
        for _ in range(2):
            queue.complete(taken(queue))
        block_until(lambda: len(queue) == 0)
        assert [each.log for each in queue.damaged()] == ["later"]
    with LocalQueue(directory, config) as queue:
        assert len(queue) == 0


def killed(queue: LocalQueue, target: Path) -> Path:
    """Return a copy of a queue's directory as a kill leaves it."""
    assert queue.directory is not None
    return Path(shutil.copytree(queue.directory, target))


def cut_end(directory: Path, log: str, content: bytes) -> None:
    """Leave the block of a log as a power cut in the middle of this content does."""
    (block,) = (each for each in (directory / log).iterdir() if content in each.read_bytes())
    data = block.read_bytes()
    block.write_bytes(data[: data.index(content) + 3])


def test_an_unfinished_end_is_cut_off_and_everything_before_is_given(
    directory: Path, tmp_path: Path
) -> None:
    with LocalQueue(directory) as queue:
        for content in (b"first", b"second", b"unfinished"):
            queue.put(content)
        left = killed(queue, tmp_path / "left")
    cut_end(left, "lane-0", b"unfinished")
    with LocalQueue(left) as queue:
        assert queue.put(b"next")
        assert contents(queue) == [b"first", b"second", b"next"]
        assert not queue.damaged()


@pytest.mark.parametrize("lost", [b"first", b"second", b"third"])
def test_damage_anywhere_in_a_closed_queue_is_set_aside(directory: Path, lost: bytes) -> None:
    puts = [b"first", b"second", b"third"]
    with LocalQueue(directory) as queue:
        for content in puts:
            queue.put(content)
    damage(directory, "lane-0", lost)
    for _ in range(2):
        with LocalQueue(directory) as queue:
            left = [each.message.content for each in queue.list()]
            assert left == [each for each in puts if each != lost]
            assert [each.messages for each in queue.damaged()] == [1]
    with LocalQueue(directory) as queue:
        assert queue.put(b"next")
        assert contents(queue) == [*left, b"next"]


def test_damage_before_what_was_flushed_is_set_aside_after_a_kill(
    directory: Path, tmp_path: Path
) -> None:
    with LocalQueue(directory) as queue:
        queue.put(b"first")
        queue.put_many([b"second", b"third"])
        queue.put(b"fourth")
        queue.put(b"fifth")
        left = killed(queue, tmp_path / "left")
    damage(left, "lane-0", b"second")
    with LocalQueue(left) as queue:
        assert queue.put(b"next")
        assert contents(queue) == [b"first", b"third", b"fourth", b"fifth", b"next"]
        assert [each.messages for each in queue.damaged()] == [1]


def test_damage_that_hides_how_many_messages_are_lost_refuses_the_directory(
    directory: Path, tmp_path: Path
) -> None:
    """Completions name messages by their numbers; nothing is changed."""
    with LocalQueue(directory) as queue:
        for content in (b"first", b"second", b"third", b"fourth"):
            queue.put(content)
        left = killed(queue, tmp_path / "left")
    damage(left, "lane-0", b"second", 20 + 88)
    for _ in range(2):
        with pytest.raises(DirectoryRefused, match="later ones say it was flushed") as caught:
            LocalQueue(left)
        assert "restore the directory from a copy" in (caught.value.hint or "")


def test_a_number_that_is_given_anew_counts_as_not_completed(
    directory: Path, tmp_path: Path
) -> None:
    """The end of a log rots away together with a message that was completed."""
    with LocalQueue(directory) as queue:
        queue.put(b"first")
        queue.put(b"rotten")
        first, rotten = taken(queue), taken(queue)
        queue.complete(rotten, wait=True)
        queue.complete(first)
        left = killed(queue, tmp_path / "left")
    cut_end(left, "lane-0", b"rotten")
    with LocalQueue(left) as queue:
        assert queue.put(b"next")
    with LocalQueue(left) as queue:
        assert contents(queue) == [b"next"]


def test_a_log_that_lost_what_a_snapshot_knows_is_refused(directory: Path) -> None:
    """Its new messages would have numbers that were given already."""
    with LocalQueue(directory) as queue:
        queue.put(b"first")
        queue.put(b"last")
    (directory / "lane-0" / "checkpoint").unlink()
    cut_end(directory, "lane-0", b"last")
    with pytest.raises(DirectoryRefused, match="was durable up to") as caught:
        LocalQueue(directory)
    assert "cut-" in (caught.value.hint or "")
