"""The checkpoint of a log: up to where everything is durable and need not be read again.

Knows the bytes, not when they are written (``log``) or believed (``recovery``). A damaged
checkpoint loses no message: the whole log is verified then. What is lost with it is the proof of
which blocks there were (``manifest``).

    | at | size | field                                                          |
    |  0 |  4   | magic "vqcp"                                                   |
    |  4 |  1   | version, 2; 3 if the manifest names an archive; 4 if the first |
    |    |      | number is told; version 1 ends its head at 64, has no manifest |
    |  5 |  1   | flags: 1 sealed                                                |
    |  6 |  2   | zero                                                           |
    |  8 |  8   | log start offset                                               |
    | 16 |  8   | offset: everything before it is durable and verified           |
    | 24 |  8   | messages since the log's first byte, up to the log start       |
    | 32 |  8   | messages since the log's first byte, up to the offset          |
    | 40 |  8   | append time of the last batch before the offset                |
    | 48 |  4   | master epoch of that batch                                     |
    | 52 |  4   | length of the topic id                                         |
    | 56 |  4   | length of the index of the block that holds the offset         |
    | 60 |  4   | length of the producer table                                   |
    | 64 |  4   | length of the manifest                                         |
    | 68 |  8   | version 4 only: number of the log's first message ever         |
    | .. |      | topic id (UTF-8), index, producer table, manifest              |
    | .. |  4   | CRC-32C of everything before                                   |

A log that begins at offset 0 has message 0 first, so its checkpoint need not say it. That of
another log does, if it is known.
"""

import struct
from dataclasses import dataclass
from typing import Final

import google_crc32c

from vq.errors import CorruptData
from vq.store.log.manifest import HeldAs, ManifestEntry, pack_manifest, unpack_manifest

_MAGIC: Final = b"vqcp"
_VERSION: Final = 2
_WITHOUT_MANIFEST: Final = 1
_WITH_ARCHIVES: Final = 3
_WITH_NUMBER: Final = 4
_SEALED: Final = 1
_HEAD: Final = struct.Struct(
    ">"
    "4s"  # magic
    "B"  # version
    "B"  # flags
    "2x"
    "Q"  # log start offset
    "Q"  # offset
    "Q"  # messages up to the log start
    "Q"  # messages up to the offset
    "Q"  # append time
    "I"  # master epoch
    "I"  # length of the topic id
    "I"  # length of the index
    "I"  # length of the producer table
)
_MANIFEST_LENGTH: Final = struct.Struct(">I")
_HEAD_BYTES: Final = _HEAD.size + _MANIFEST_LENGTH.size
_NUMBER: Final = struct.Struct(">Q")
assert _HEAD.size == 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What a checkpoint says. Invariant: ``start_offset <= offset``.

    ``manifest`` is None in checkpoints of the first version, which had none. ``first_number`` is
    that of the log's first message ever; None: not told.
    """

    topic_id: str
    start_offset: int
    offset: int
    start_messages: int = 0
    messages: int = 0
    append_time_ms: int = 0
    epoch: int = 0
    sealed: bool = False
    index: bytes = b""
    producers: bytes = b""
    manifest: tuple[ManifestEntry, ...] | None = ()
    first_number: int | None = None

    def to_bytes(self) -> bytes:
        """Return the bytes that the module's table shows."""
        topic_id = self.topic_id.encode()
        entries = self.manifest or ()
        manifest = pack_manifest(entries)
        version, number = _VERSION, b""
        if self.start_offset and self.first_number is not None:
            version, number = _WITH_NUMBER, _NUMBER.pack(self.first_number)
        elif any(entry.kind is not HeldAs.BLOCK for entry in entries):
            version = _WITH_ARCHIVES
        head = _HEAD.pack(
            _MAGIC,
            version,
            _SEALED if self.sealed else 0,
            self.start_offset,
            self.offset,
            self.start_messages,
            self.messages,
            self.append_time_ms,
            self.epoch,
            len(topic_id),
            len(self.index),
            len(self.producers),
        )
        length = _MANIFEST_LENGTH.pack(len(manifest))
        body = b"".join((head, length, number, topic_id, self.index, self.producers, manifest))
        crc: int = google_crc32c.value(body)
        return body + crc.to_bytes(4, "big")

    @classmethod
    def from_bytes(cls, data: bytes) -> "Checkpoint":
        """Return what ``to_bytes`` was given.

        Raises:
            CorruptData: The bytes are not a checkpoint, are damaged, or of an unknown version.
        """
        if len(data) < _HEAD.size + 4 or data[:4] != _MAGIC:
            raise CorruptData(f"{len(data)} bytes are not a checkpoint")
        version = data[4]
        if not _WITHOUT_MANIFEST <= version <= _WITH_NUMBER:
            raise CorruptData(f"a checkpoint has version {version}, not up to {_WITH_NUMBER}")
        if google_crc32c.value(data[:-4]) != int.from_bytes(data[-4:], "big"):
            raise CorruptData("a checkpoint fails its CRC")
        fields = _HEAD.unpack_from(data)
        flags, start, offset, start_messages, messages, time, epoch = fields[2:9]
        has_manifest = version != _WITHOUT_MANIFEST
        topic_start = _HEAD_BYTES if has_manifest else _HEAD.size
        if version == _WITH_NUMBER:
            topic_start += _NUMBER.size
        if len(data) < topic_start + 4:
            raise CorruptData("a checkpoint ends within its head")
        number = None
        if version == _WITH_NUMBER:
            number = int(_NUMBER.unpack_from(data, _HEAD_BYTES)[0])
        topic_end = topic_start + fields[9]
        index_end = topic_end + fields[10]
        producers_end = index_end + fields[11]
        end = producers_end
        if has_manifest:
            end += _MANIFEST_LENGTH.unpack_from(data, _HEAD.size)[0]
        if end != len(data) - 4 or start > offset or flags & ~_SEALED:
            raise CorruptData("a checkpoint contradicts itself")
        manifest = unpack_manifest(data[producers_end:end]) if has_manifest else None
        if manifest and (manifest[0].start_offset != start or manifest[-1].start_offset > offset):
            raise CorruptData("a checkpoint's manifest contradicts its offsets")
        try:
            topic_id = data[topic_start:topic_end].decode()
        except UnicodeDecodeError as error:
            raise CorruptData("a checkpoint has a topic id that is not text") from error
        return cls(
            topic_id=topic_id,
            start_offset=start,
            offset=offset,
            start_messages=start_messages,
            messages=messages,
            append_time_ms=time,
            epoch=epoch,
            sealed=bool(flags & _SEALED),
            index=data[topic_end:index_end],
            producers=data[index_end:producers_end],
            manifest=manifest,
            first_number=number,
        )
