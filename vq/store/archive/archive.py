"""What an archive is: the bytes of one block in a zip, and a stub beside the log that describes it.

Knows the bytes of the stub, not files. A **zip** holds the block as consecutive chunks of whole
batches, each about 1 MiB and deflated (or stored where that is not smaller), and a description:

    block/0000000000                the block's bytes from its position 0 on
    block/0001048200                … and so on, in order: unzip -p X.zip 'block/*' is the block
    description.json                whose block it is, for people and other programs

A **stub**, ``<16 digits>.archive``, is a small JSON file with a checksum (``checked_text``):

    {"v": 2, "start": 0, "length": 134217000, "zip": "", "zip_bytes": 23400321,
     "zip_sha256": "9f86…", "block_sha256": "60303a…", "messages": 130000, "last_ms": 1763800000000,
     "first": "0000004418f2…", "epochs": [[3, 0], [5, 8812000]],
     "chunks": [[1048200, 54, 190233, 3735928559], …], "crc": "0a1b2c3d"}

``zip`` is the URL of the zip; empty: it lies beside the stub as ``<16 digits>.zip``. ``first`` is
the block's first control record, ``epochs`` has each master epoch of its batches with the offset of
its first one. A chunk has its length in the block, the position and size of its data in the zip,
and the CRC-32 of its bytes; it is stored if both sizes are equal.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, NamedTuple

from vq.errors import CorruptData
from vq.limits import GIB, MIB
from vq.store.archive.zip_format import MEMBERS_MAX, ZIP_BYTES_MAX
from vq.store.records.checked_text import decode_text, encode_text
from vq.store.records.format import (
    ARCHIVE_SUFFIX,
    BATCH_ON_DISK_BYTES_MAX,
    BLOCK_SUFFIX,
    DISCARD_SUFFIX,
    INDEX_SUFFIX,
    OFFSET_DIGITS,
    OFFSET_MAX,
    UPLOAD_SUFFIX,
    ZIP_SUFFIX,
    BatchHeader,
    decode_control,
)

#: What one chunk of a block has, unless a batch is larger.
CHUNK_BYTES: Final = 1 * MIB
#: A larger block is not archived: its zip must end below 4 GiB.
ARCHIVED_BLOCK_BYTES_MAX: Final = 3 * GIB
#: Epochs that a stub names; a block with batches of more is not archived.
EPOCHS_MAX: Final = 4096
#: Directory of the chunks in a zip, and the name of what describes it.
CHUNK_DIRECTORY: Final = "block/"
DESCRIPTION_NAME: Final = "description.json"
DESCRIPTION_VERSION: Final = 1
STUB_VERSION: Final = 2
#: Directories of a zip below its place; see ``url_of``.
OWNER_PARTS: Final = 5
#: The last parts of a URL, up to the directory of a node: topic, partition and name of the zip.
_BELOW_NODE: Final = 3
#: How the directory of a node below a place ends.
_OWNER: Final = re.compile(r"\.([0-9a-f]{16})$")
#: A position in a block has so many digits in the name of a chunk: names sort as the chunks lie.
_POSITION_DIGITS: Final = len(str(ARCHIVED_BLOCK_BYTES_MAX))

assert ARCHIVED_BLOCK_BYTES_MAX + BATCH_ON_DISK_BYTES_MAX < ZIP_BYTES_MAX
#: Two chunks side by side have more than CHUNK_BYTES: a batch of one did not fit into the other.
assert 2 * ARCHIVED_BLOCK_BYTES_MAX // CHUNK_BYTES + 2 < MEMBERS_MAX


@dataclass(frozen=True, slots=True)
class ArchiveFiles:
    """The names that belong to one block, whatever holds its bytes."""

    block: Path
    stub: Path
    zip: Path
    index: Path
    discard: Path
    upload: Path

    @classmethod
    def of(cls, path: Path) -> "ArchiveFiles":
        """Return them; ``path`` is any of them."""
        names = BLOCK_SUFFIX, ARCHIVE_SUFFIX, ZIP_SUFFIX, INDEX_SUFFIX, DISCARD_SUFFIX
        return cls(*(path.with_suffix(suffix) for suffix in (*names, UPLOAD_SUFFIX)))


class ZipChunk(NamedTuple):
    """A part of the block ``[start, start + length)``, and where its data lie in the zip.

    Attributes:
        start: Position in the block.
        length: Bytes.
        at: Position of the data in the zip.
        size: Bytes of the data; the same as ``length``: not compressed.
        crc: CRC-32 of the bytes.
    """

    start: int
    length: int
    at: int
    size: int
    crc: int

    @property
    def end(self) -> int:
        """Where it ends in the block."""
        return self.start + self.length


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """What is kept in memory of an archived block; the positions of its chunks are not.

    Attributes:
        start_offset: Of the block.
        length: Of the block, in bytes.
        url: Where the zip is; "": beside the stub.
        zip_bytes: Size of the zip.
        zip_sha256: Digest of the zip, in hexadecimal.
        block_sha256: Digest of the block's bytes.
        messages: In the block, control records not counted.
        last_ms: Append time of its last batch.
        first: The header of its first batch.
        epochs: Each epoch of its batches, with the offset of the first batch of it; rising.
    """

    start_offset: int
    length: int
    url: str = ""
    zip_bytes: int
    zip_sha256: str
    block_sha256: str
    messages: int
    last_ms: int
    first: BatchHeader
    epochs: tuple[tuple[int, int], ...]

    @property
    def end_offset(self) -> int:
        """Where the block ends."""
        return self.start_offset + self.length

    def epoch_up_to(self, epoch: int) -> tuple[int, int] | None:
        """Return the last epoch up to ``epoch`` with batches here, and where these end."""
        at = bisect_right(self.epochs, epoch, key=lambda each: each[0])
        if at == 0:
            return None
        end = self.epochs[at][1] if at < len(self.epochs) else self.end_offset
        return self.epochs[at - 1][0], end


class Stub:
    """A stub: the archive, and where its chunks lie. Holds the bytes of a file, no file.

    Attributes:
        archive: The facts.
        chunks: In order, without gaps; together they are the block.
        first: The block's first control record.
    """

    __slots__ = ("_starts", "archive", "chunks", "first")

    def __init__(self, archive: Archive, chunks: Sequence[ZipChunk], first: bytes) -> None:
        self.archive = archive
        self.chunks = tuple(chunks)
        self.first = first
        self._starts = [chunk.start for chunk in self.chunks]

    def numbers(self, position: int, length: int) -> range:
        """Return the numbers of the chunks that hold ``[position, position + length)``."""
        first = bisect_right(self._starts, position) - 1
        last = bisect_right(self._starts, max(position, position + length - 1)) - 1
        return range(first, last + 1)

    def to_bytes(self) -> bytes:
        """Return the bytes of the file."""
        archive = self.archive
        values: dict[str, Any] = {
            "start": archive.start_offset,
            "length": archive.length,
            "zip": archive.url,
            "zip_bytes": archive.zip_bytes,
            "zip_sha256": archive.zip_sha256,
            "block_sha256": archive.block_sha256,
            "messages": archive.messages,
            "last_ms": archive.last_ms,
            "first": self.first.hex(),
            "epochs": archive.epochs,
            "chunks": [chunk[1:] for chunk in self.chunks],
        }
        return encode_text(STUB_VERSION, values)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Stub":
        """Return what ``to_bytes`` was given.

        Raises:
            CorruptData: It is no stub, is damaged, or of an unknown version.
        """
        version, values = decode_text(data, version_max=STUB_VERSION)
        if version != STUB_VERSION:
            raise CorruptData(f"a stub of an archive has version {version}, not {STUB_VERSION}")
        try:
            first = bytes.fromhex(values["first"])
            header = decode_control(first)
            if header is None:
                raise CorruptData("a stub of an archive has no control record")
            archive = Archive(
                start_offset=int(values["start"]),
                length=int(values["length"]),
                url=str(values["zip"]),
                zip_bytes=int(values["zip_bytes"]),
                zip_sha256=str(values["zip_sha256"]),
                block_sha256=str(values["block_sha256"]),
                messages=int(values["messages"]),
                last_ms=int(values["last_ms"]),
                first=header,
                epochs=tuple((int(epoch), int(offset)) for epoch, offset in values["epochs"]),
            )
            starts = accumulate((each[0] for each in values["chunks"]), initial=0)
            chunks = [
                ZipChunk(start, *map(int, each))
                for start, each in zip(starts, values["chunks"], strict=False)
            ]
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise CorruptData(f"a stub of an archive lacks something: {error}") from error
        if not _fits(archive, chunks):
            raise CorruptData("a stub of an archive contradicts itself")
        return cls(archive, chunks, first)


def _fits(archive: Archive, chunks: Sequence[ZipChunk]) -> bool:
    """Whether the fields of a stub agree with each other."""
    return (
        bool(chunks)
        and chunks[-1].end == archive.length
        and archive.first.start_offset == archive.start_offset
        and all(0 < each.size <= each.length for each in chunks)
        and all(each.at > 0 and each.at + each.size <= archive.zip_bytes for each in chunks)
        and bool(archive.epochs)
        and archive.epochs[0] == (archive.first.master_epoch, archive.start_offset)
        and 0 <= archive.start_offset <= archive.end_offset <= OFFSET_MAX
    )


def chunk_name(position: int) -> str:
    """Return the name of the chunk at a position of the block."""
    return f"{CHUNK_DIRECTORY}{position:0{_POSITION_DIGITS}d}"


def place_of(url: str) -> str:
    """Return the place of a zip: what ``url_of`` was given, without a slash at its end."""
    return url.rsplit("/", OWNER_PARTS + 1)[0]


def node_url(url: str) -> str:
    """Return the directory of a zip that has all those of one node."""
    return url.rsplit("/", _BELOW_NODE)[0]


def owner_of(url: str) -> str:
    """Return which data directory owns a zip (``archive_owner``); "": the URL names none."""
    found = _OWNER.search(node_url(url))
    return "" if found is None else found[1]


def joined(places: Iterable[str]) -> str:
    """Return one name for several places; "" is none, and counts for nothing.

    Threads are told apart by it: what waits for two places holds up neither for others.
    """
    return " ".join(sorted({*places} - {""}))


def url_of(place: str, parts: Sequence[str], start_offset: int) -> str:
    """Return where a zip goes below ``place``, a URL: ``parts`` are its directories.

    They are cluster, group, node with owner, topic and partition.
    """
    name = f"{start_offset:0{OFFSET_DIGITS}d}{ZIP_SUFFIX}"
    return "/".join((place.rstrip("/"), *parts, name))
