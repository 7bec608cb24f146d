"""Files of exported messages: whole or not there, the same messages in each format."""

import json
import sys
from pathlib import Path

import pytest

from vq.cli.archives import export_files
from vq.cli.archives.export_files import ExportFile, NotInstalled, format_of
from vq.cli.base.text import as_json_line
from vq.errors import Busy, InvalidArgument
from vq.model import ID_EPOCH_MS, Message

ID = 1_000_000 << 23
MESSAGES = [
    Message("t", b"one", None, "key", {"a": "b", "c": ""}, 3, 0, 10, ID, 1_750_000_000_000),
    Message("t", b"\xff\x00", "tag", b"\x01", None, 3, 10, 20, ID + 1, 1_750_000_000_001),
    Message("t", b"", None, -5, None, 4, 0, 10, ID + 2, None),
    Message("t", b"x", None, None, None, 4, 10, 20, ID + 3, 1_750_000_000_002),
]


@pytest.mark.parametrize(
    ("name", "wanted", "form"),
    [
        ("a.jsonl", None, "jsonl"),
        ("a.ndjson", None, "jsonl"),
        ("a.parquet", None, "parquet"),
        ("a.jsonl", "parquet", "parquet"),
        ("a", "jsonl", "jsonl"),
    ],
)
def test_the_name_says_the_format_unless_it_is_given(
    name: str, wanted: str | None, form: str
) -> None:
    assert format_of(Path(name), wanted) == form


def test_a_name_that_says_no_format_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="says no format"):
        format_of(Path("a.csv"), None)


def test_lines_are_those_of_consume(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with ExportFile(path, "jsonl") as file:
        file.write(MESSAGES[:1])
        file.write(MESSAGES[1:])
        assert not path.exists()
    assert file.messages == 4
    assert path.read_bytes() == b"".join(map(as_json_line, MESSAGES))
    assert [json.loads(line)["offset"] for line in path.read_text().splitlines()] == [0, 10, 0, 10]
    assert list(tmp_path.iterdir()) == [path]


def test_an_export_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("before")

    def export() -> None:
        with ExportFile(path, "jsonl") as file:
            file.write(MESSAGES)
            raise RuntimeError("the broker went away")

    with pytest.raises(RuntimeError):
        export()
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("group", [1, 3, 50_000])
def test_parquet_has_a_row_for_each_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: int
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(export_files, "GROUP_MESSAGES", group)
    path = tmp_path / "a.parquet"
    with ExportFile(path, "parquet") as file:
        file.write(MESSAGES)
    rows = parquet.read_table(path).to_pylist()
    assert [each["content"] for each in rows] == [each.content for each in MESSAGES]
    assert [(each["partition"], each["offset"], each["id"]) for each in rows] == [
        (each.partition, each.offset, each.id) for each in MESSAGES
    ]
    assert [each["key"] for each in rows] == [b"key", b"\x01", b"-5", None]
    assert [each["key_type"] for each in rows] == ["text", "bytes", "int", None]
    assert [each["tag"] for each in rows] == [None, "tag", None, None]
    assert rows[0]["headers"] == [("a", "b"), ("c", "")]
    assert {each["topic"] for each in rows} == {"t"}
    sent = [round(each["sent"].timestamp() * 1000) for each in rows]
    assert sent == [ID_EPOCH_MS + 1_000_000] * 4
    assert rows[2]["stored"] is None
    assert round(rows[0]["stored"].timestamp() * 1000) == 1_750_000_000_000


def test_an_empty_export_is_a_whole_file(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    with ExportFile(tmp_path / "a.parquet", "parquet"):
        pass
    assert parquet.read_table(tmp_path / "a.parquet").num_rows == 0
    with ExportFile(tmp_path / "a.jsonl", "jsonl"):
        pass
    assert (tmp_path / "a.jsonl").read_bytes() == b""


def test_without_pyarrow_parquet_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(NotInstalled) as refused, ExportFile(tmp_path / "a.parquet", "parquet"):
        pass
    assert "pip install 'pyarrow>=" in refused.value.hint
    assert list(tmp_path.iterdir()) == []


def test_a_group_of_rows_ends_with_its_headers_and_keys_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """50,000 messages without content may have 1.6 GB of headers."""
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(export_files, "GROUP_BYTES", 1_000)
    path = tmp_path / "a.parquet"
    with ExportFile(path, "parquet") as file:
        for each in MESSAGES:
            file.write([each._replace(headers={"name": "x" * 600})] * 2)
            file.write([each._replace(content=b"", key="k" * 1_000)])
    assert parquet.ParquetFile(path).num_row_groups == 8


def test_two_exports_into_one_file_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with ExportFile(path, "jsonl") as first:
        first.write(MESSAGES)
        with pytest.raises(Busy, match="another export"), ExportFile(path, "jsonl"):
            pass
        first.write(MESSAGES)
    assert path.read_bytes() == 2 * b"".join(map(as_json_line, MESSAGES))
    with ExportFile(path, "jsonl") as second:
        second.write(MESSAGES)
    assert path.read_bytes() == b"".join(map(as_json_line, MESSAGES))


def test_what_a_killed_export_left_is_not_in_the_way(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    (tmp_path / "a.jsonl.part").write_bytes(b"half of something" * 1_000)
    with ExportFile(path, "jsonl") as file:
        file.write(MESSAGES)
    assert path.read_bytes() == b"".join(map(as_json_line, MESSAGES))
    assert list(tmp_path.iterdir()) == [path]
