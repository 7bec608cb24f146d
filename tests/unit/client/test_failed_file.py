"""The file of skipped messages: what a crash, damage and a full disk leave of it."""

import errno
import os
from pathlib import Path

import pytest

from vq.client import failed_file
from vq.client.failed_file import HEAD, MAGIC, FailedFile, commands_lock, directory_of, files_of
from vq.errors import InvalidState
from vq.model import Message
from vq.reserved import DeliveryFailure, MessageOrigin, headers_of_copy
from vq.store.records.copies import encode_copy


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VQ_FAILED_DIR", str(tmp_path))
    return directory_of("c", "g")


@pytest.fixture
def file(directory: Path) -> FailedFile:
    return FailedFile(directory / "m.failed")


def record(offset: int, reason: str = "no") -> bytes:
    message = Message("t", b"%d" % offset, "red", b"\0k", {"n": "1"}, id=offset + 100)
    origin = MessageOrigin("t", 3, offset, 7)
    return encode_copy(message, headers_of_copy(origin, DeliveryFailure(2, 5, reason)))


def offsets(file: FailedFile) -> list[int]:
    return [each.message.offset for each in file.read().messages.values()]


def test_messages_come_back_as_they_were_delivered(file: FailedFile) -> None:
    assert files_of("c", "g") == []
    file.add(record(10), 1_000)
    [again] = files_of("c", "g")
    [found] = again.read().messages.values()
    assert (found.member, found.time_ms, found.is_sending) == ("m", 1_000, False)
    assert found.failure == DeliveryFailure(2, 5, "no")
    assert found.origin == MessageOrigin("t", 3, 10, 7)
    assert found.message[:7] == ("t", b"10", "red", b"\0k", {"n": "1"}, 3, 10)
    assert found.message.id == 110
    assert file.path.stat().st_mode & 0o777 == 0o600, "messages are nobody else's business"


def test_a_message_that_is_skipped_again_after_a_kill_counts_once(file: FailedFile) -> None:
    for _ in range(2):
        FailedFile(file.path).add(record(10), 1_000)
    assert offsets(file) == [10]


def test_a_torn_end_hides_nothing_and_is_kept_aside(file: FailedFile) -> None:
    """Wherever the write was cut."""
    file.add(record(1), 1_000)
    whole = file.path.read_bytes()
    file.add(record(2), 1_000)
    both = file.path.read_bytes()
    for length in range(len(both)):
        file.path.write_bytes(both[:length])
        expected = [1] if length >= len(whole) else []
        torn = length - (len(whole) if expected else min(length, len(MAGIC)))
        assert offsets(file) == expected
        assert file.read().unread_bytes == torn
        FailedFile(file.path).add(record(3), 1_000)
        assert offsets(file) == [*expected, 3]
        aside = list(file.path.parent.glob("*.cut-*"))
        assert [each.stat().st_size for each in aside] == ([torn] if torn else [])
        for each in aside:
            each.unlink()


def test_damage_is_kept_aside_with_what_is_behind_it(file: FailedFile) -> None:
    for offset in range(3):
        file.add(record(offset), 1_000)
    data = bytearray(file.path.read_bytes())
    size = (len(data) - len(MAGIC)) // 3
    data[len(MAGIC) + size + HEAD.size + 5] ^= 1
    file.path.write_bytes(data)
    assert offsets(file) == [0]
    assert file.read().unread_bytes == 2 * size
    file.tidy()
    assert file.path.read_bytes() == data, "nothing is thrown away with it"
    FailedFile(file.path).add(record(9), 1_000)
    assert offsets(file) == [0, 9]
    [aside] = file.path.parent.glob("*.cut-*")
    assert aside.read_bytes() == data[len(MAGIC) + size :]


def test_a_file_of_another_kind_is_left_alone(file: FailedFile) -> None:
    file.path.parent.mkdir(parents=True)
    file.path.write_bytes(b"a diary, of some length")
    for call in (file.read, lambda: file.add(record(1), 1)):
        with pytest.raises(InvalidState, match="move it away"):
            call()
    assert file.path.read_bytes() == b"a diary, of some length"


def test_a_full_disk_leaves_what_was_there(
    file: FailedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.add(record(1), 1_000)
    before = file.path.read_bytes()

    def fsync(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as failing:
        failing.setattr(os, "fsync", fsync)
        with pytest.raises(InvalidState, match=r"cannot be written.*Input/output error"):
            file.add(record(2), 1_000)
    assert file.path.read_bytes() == before
    file.add(record(3), 1_000)
    assert offsets(file) == [1, 3]


def test_at_its_bound_it_takes_notes_only(
    file: FailedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.add(record(1), 1_000)
    monkeypatch.setattr(failed_file, "FILE_BYTES_MAX", file.path.stat().st_size + 10)
    with pytest.raises(InvalidState, match="beyond its bound") as caught:
        file.add(record(2), 1_000)
    assert "vq group failed run g" in caught.value.hint
    file.note("forgotten", 1_000, of=list(file.read().messages))
    file.tidy()
    assert not file.path.exists()
    file.add(record(2), 1_000)
    assert offsets(file) == [2]


def test_what_is_settled_makes_room(file: FailedFile) -> None:
    for offset in range(4):
        file.add(record(offset), 1_000)
    numbers = list(file.read().messages)
    batch = file.note("begun", 2, of=numbers[1:3], to=["t", 3], topic_id="x", stamp=[7, 0, 2])
    file.note("forgotten", 2, of=[numbers[0]])
    size = file.path.stat().st_size
    before = file.read()
    assert list(before.batches) == [batch]
    assert [each.is_sending for each in before.messages.values()] == [True, True, False]
    file.note("forgotten", 2, of=[numbers[3]])
    file.note("sent", 3, batch=batch)
    file.add(record(9), 1_000)
    file.tidy()
    assert file.path.stat().st_size < size / 2
    assert offsets(file) == [9]
    FailedFile(file.path).add(record(10), 1_000)
    file.add(record(11), 1_000)
    assert offsets(file) == [9, 10, 11], "also for whoever knows the file of before"


def test_a_failure_after_the_begin_of_its_resend_is_another_one(file: FailedFile) -> None:
    file.add(record(1), 1_000)
    [first] = file.read().messages
    batch = file.note("begun", 2, of=[first], to=["t", 3], topic_id="x", stamp=[7, 0, 2])
    file.add(record(1, "again"), 3_000)  # it was sent, and fails once more
    file.note("sent", 4, batch=batch)
    [left] = file.read().messages.values()
    assert left.failure.reason == "again"


@pytest.mark.parametrize("says", ["open", "forgotten"])
def test_a_batch_that_nobody_can_send_opens_its_messages(file: FailedFile, says: str) -> None:
    for offset in range(2):
        file.add(record(offset), 1_000)
    numbers = list(file.read().messages)
    batch = file.note("begun", 2, of=numbers, to=["t", 3], topic_id="x", stamp=[7, 0, 2])
    file.note(says, 3, **({"batch": batch} if says == "open" else {"of": [numbers[0]]}))
    found = file.read()
    assert found.batches == {}
    assert offsets(file) == ([0, 1] if says == "open" else [1])
    assert not any(each.is_sending for each in found.messages.values())


def test_one_command_at_a_time_and_members_go_on(file: FailedFile) -> None:
    with commands_lock("c", "g"):
        file.add(record(1), 1_000)
        with (
            pytest.raises(InvalidState, match="locked by another process"),
            commands_lock("c", "g"),
        ):
            pass
