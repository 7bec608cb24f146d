"""The bytes of a zip file, as far as archives need them: written in one go, from front to back.

In here: headers and directory. Not in here: what an archive holds (``archive``), compressing
(``archive_writer``), files (``disk``). Layouts are those of PKWARE's APPNOTE.TXT 6.3, without
encryption, comments, data descriptors and ZIP64; so all integers are little-endian here, and a zip
ends below 4 GiB.

    | local header | name | data |  …  | central directory | end record |
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from vq.errors import CorruptData

STORED: Final = 0
DEFLATED: Final = 8
#: 2.0, the first version with deflate; written on Unix, so that a member's mode counts.
_VERSION: Final = 20
_MADE_BY: Final = 3 << 8 | _VERSION
_MODE: Final = 0o100640 << 16
#: 1980-01-01, 0:00: the first time that a zip can tell. The same block gives the same bytes.
_TIME: Final = 0
_DATE: Final = 1 << 5 | 1

_LOCAL: Final = struct.Struct(
    "<"
    "4s"  # "PK\3\4"
    "H"  # version needed
    "H"  # flags
    "H"  # method
    "H"  # time
    "H"  # date
    "I"  # CRC-32
    "I"  # size of the data as they lie there
    "I"  # length of the data
    "H"  # length of the name
    "H"  # length of the extra field
)
_CENTRAL: Final = struct.Struct(
    "<"
    "4s"  # "PK\1\2"
    "H"  # made by
    "H"  # version needed
    "H"  # flags
    "H"  # method
    "H"  # time
    "H"  # date
    "I"  # CRC-32
    "I"  # size of the data as they lie there
    "I"  # length of the data
    "H"  # length of the name
    "H"  # length of the extra field
    "H"  # length of the comment
    "H"  # number of the disk
    "H"  # internal attributes
    "I"  # external attributes
    "I"  # position of the local header
)
_END: Final = struct.Struct(
    "<"
    "4s"  # "PK\5\6"
    "H"  # number of this disk
    "H"  # disk of the directory
    "H"  # entries on this disk
    "H"  # entries
    "I"  # size of the directory
    "I"  # position of the directory
    "H"  # length of the comment
)
LOCAL_HEADER_BYTES: Final = _LOCAL.size
END_BYTES: Final = _END.size
#: What the fields of the directory can tell.
ZIP_BYTES_MAX: Final = (1 << 32) - 2
MEMBERS_MAX: Final = (1 << 16) - 2

assert (_LOCAL.size, _CENTRAL.size, _END.size) == (30, 46, 22)


class ZipMember(NamedTuple):
    """One file in a zip.

    Attributes:
        name: Its name, ASCII.
        at: Position of its local header.
        size: Bytes as they lie in the zip; the same as ``length``: stored, not deflated.
        length: Bytes of the file.
        crc: Their CRC-32.
    """

    name: str
    at: int
    size: int
    length: int
    crc: int

    @property
    def method(self) -> int:
        """How it is compressed."""
        return STORED if self.size == self.length else DEFLATED

    @property
    def data_at(self) -> int:
        """Position of its data."""
        return self.at + LOCAL_HEADER_BYTES + len(self.name)


def header(member: ZipMember) -> bytes:
    """Return what precedes the data of a member."""
    name = member.name.encode("ascii")
    head = _LOCAL.pack(
        b"PK\3\4",
        _VERSION,
        0,
        member.method,
        _TIME,
        _DATE,
        member.crc,
        member.size,
        member.length,
        len(name),
        0,
    )
    return head + name


def directory(members: Sequence[ZipMember], position: int) -> bytes:
    """Return what ends a zip with these members; it begins at ``position``."""
    parts = []
    for member in members:
        name = member.name.encode("ascii")
        entry = _CENTRAL.pack(
            b"PK\1\2",
            _MADE_BY,
            _VERSION,
            0,
            member.method,
            _TIME,
            _DATE,
            member.crc,
            member.size,
            member.length,
            len(name),
            0,
            0,
            0,
            0,
            _MODE,
            member.at,
        )
        parts += [entry, name]
    size, count = sum(map(len, parts)), len(members)
    return b"".join((*parts, _END.pack(b"PK\5\6", 0, 0, count, count, size, position, 0)))


def directory_in(end: bytes, zip_bytes: int) -> tuple[int, int]:
    """Return where the directory of a zip begins, and how many members it has.

    Args:
        end: The last bytes of the zip, at least ``END_BYTES``.
        zip_bytes: Size of the zip.

    Raises:
        CorruptData: They do not end a zip of that size as ``directory`` writes it.
    """
    if len(end) >= END_BYTES:
        mark, disk, first_disk, here, count, size, position, comment = _END.unpack(end[-END_BYTES:])
        is_plain = mark == b"PK\5\6" and not (disk or first_disk or comment) and here == count
        if is_plain and position + size + END_BYTES == zip_bytes:
            return position, count
    raise CorruptData(f"a zip of {zip_bytes} bytes does not end with its directory")


def members(data: bytes, count: int) -> list[ZipMember]:
    """Return the members that a directory names, in its order.

    Raises:
        CorruptData: It has not so many, or one is of a kind that ``directory`` does not write.
    """
    found: list[ZipMember] = []
    at = 0
    while at + _CENTRAL.size <= len(data) and len(found) < count:
        fields = _CENTRAL.unpack_from(data, at)
        mark, _, _, flags, method, _, _, crc, size, length, name_size, extra, comment = fields[:13]
        name = data[at + _CENTRAL.size : at + _CENTRAL.size + name_size]
        at += _CENTRAL.size + name_size
        if mark != b"PK\1\2" or flags or extra or comment or at > len(data) or not name.isascii():
            break
        member = ZipMember(name.decode("ascii"), fields[-1], size, length, crc)
        if method != member.method:
            break
        found.append(member)
    if len(found) != count or at != len(data):
        raise CorruptData(f"the directory of a zip is damaged behind {len(found)} of {count} files")
    return found
