"""A file of offsets: one process has it, a crash leaves a whole one, damage is refused."""

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.cases import case
from support.coordination import at

from vq.errors import InvalidArgument, InvalidState, OffsetStoreFailed
from vq.offset_stores.file import FileOffsetStore
from vq.offset_stores.table import Commit, Fence, Key, Row, RowClaim

KEY, FENCE = Key("c", "g", "t", 0), Fence(1, 1)


def committed(store: FileOffsetStore, offset: int) -> None:
    store.begin({KEY: RowClaim(FENCE, "m1")})
    store.commit([Commit(KEY, FENCE, at(offset))])


def test_what_is_committed_is_there_after_the_process(tmp_path: Path) -> None:
    path = tmp_path / "o.json"
    with closing(FileOffsetStore(path)) as store:
        identity = store.open()
        committed(store, 10)
    with closing(FileOffsetStore(path)) as store:
        assert store.open() == identity
        assert store.read("c", "g", ["t"]) == {KEY: Row(FENCE, at(10), 1)}
        assert store.forget("c", "g") == 1
    with closing(FileOffsetStore(path)) as store:
        store.open()
        assert store.read("c", "g", ["t"]) == {}


def test_a_second_one_is_refused(tmp_path: Path) -> None:
    """A store of another process, too; it ends with that process."""
    path = tmp_path / "o.json"
    with closing(FileOffsetStore(path)) as store:
        store.open()
        with pytest.raises(InvalidState, match="in use by another process"):
            FileOffsetStore(path).open()
        program = f"import vq; vq.FileOffsetStore({str(path)!r}).open()"
        ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert "in use by another process" in ended.stderr
    with closing(FileOffsetStore(path)) as store:
        store.open()


def test_any_change_of_its_bytes_is_noticed(tmp_path: Path) -> None:
    """It is never taken for a file without offsets, and is not written over."""
    path = tmp_path / "o.json"
    with closing(FileOffsetStore(path)) as store:
        store.open()
        committed(store, 12345)
    whole = path.read_bytes()
    document = json.loads(whole)
    damaged = [
        b"",
        whole[: len(whole) // 2],
        whole.replace(b"12345", b"12346"),
        json.dumps({**document, "rows": []}).encode(),
        json.dumps({**document, "id": "other"}).encode(),
        json.dumps({**document, "format": 2}).encode(),
        b"[" * 100_000,
    ]
    for each in damaged:
        with case(each[:60]):
            path.write_bytes(each)
            with pytest.raises(InvalidState, match="cannot be used"):
                FileOffsetStore(path).open()
            assert path.read_bytes() == each


@pytest.mark.parametrize("step", ["open", "write", "fsync", "replace", "fsync of the directory"])
def test_a_commit_that_fails_leaves_the_old_file_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """It is told as unknown, and may be repeated."""
    path = tmp_path / "o.json"
    store = FileOffsetStore(path)
    store.open()
    committed(store, 10)
    with monkeypatch.context() as patch:
        _fail(patch, step)
        with pytest.raises(OffsetStoreFailed, match="No space left"):
            store.commit([Commit(KEY, FENCE, at(20), 1)])
    assert store.read("c", "g", ["t"])[KEY].offset == at(10)
    store.close()
    with closing(FileOffsetStore(path)) as store:
        store.open()
        found = store.read("c", "g", ["t"])[KEY].offset
        assert found == at(20 if step == "fsync of the directory" else 10)
        store.commit([Commit(KEY, FENCE, at(20), 1)])
        assert store.read("c", "g", ["t"])[KEY].offset == at(20)


def _fail(patch: pytest.MonkeyPatch, step: str) -> None:
    full = OSError(28, "No space left on device")
    calls = [0]

    def fails(*_: Any, **__: Any) -> Any:
        raise full

    def fails_later(file: int) -> None:
        calls[0] += 1
        if calls[0] == 2:
            raise full

    if step == "open":
        patch.setattr(os, "open", fails)
    elif step == "write":
        patch.setattr("builtins.open", fails)
    elif step == "replace":
        patch.setattr(os, "replace", fails)
    else:
        patch.setattr(os, "fsync", fails if step == "fsync" else fails_later)


def test_a_place_that_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="give the path of a file"):
        FileOffsetStore("")
    with pytest.raises(OffsetStoreFailed, match="No such file"):
        FileOffsetStore(tmp_path / "no" / "o.json").open()
    closed = FileOffsetStore(tmp_path / "o.json")
    closed.open()
    closed.close()
    with pytest.raises(OffsetStoreFailed, match="is closed"):
        closed.read("c", "g", ["t"])
