"""The bytes of a frame: layout, numbers of commands, flag bits.

All constants of the wire are here; header fields are in ``wire.proto``; bounds that several
packages share are in ``vq.limits``. docs/protocol.md describes the same for authors of clients in
other languages; a test compares the two.

    field            size
    length           4     bytes after this field: 16 + header + body
    magic            2     'v' 'q'
    version          1     1
    flags            1     bit 0 HESSIAN: the header is a Hessian 2 map, not protobuf
    command          2     ``Command``; a reply repeats that of its request
    status           2     0 in requests and good replies; else a number of vq/errors.py
    correlation id   4     chosen by the client, repeated in the reply
    header length    4
    header           n     message of the command, or ``Error`` when status is not 0
    body             rest  raw bytes (records)

All integers are big-endian. These first 20 bytes keep their layout in every later version, so that
a peer can always name the version and the request that it refuses.
"""

import enum
import struct
from collections.abc import Mapping
from typing import Final

from vq import limits

MAGIC: Final = b"vq"
VERSION_MIN: Final = 1
VERSION_MAX: Final = 1
#: Magic and version together: the fifth to seventh byte of every frame.
MAGIC_VERSION: Final = MAGIC + bytes([VERSION_MAX])

PREFIX: Final = struct.Struct(
    ">"
    "I"  # length
    "3s"  # magic, version
    "B"  # flags
    "H"  # command
    "H"  # status
    "I"  # correlation id
    "I"  # header length
)
PREFIX_BYTES: Final = PREFIX.size
LENGTH_BYTES: Final = 4
#: The bytes that ``length`` counts in addition to header and body.
LENGTH_OVERHEAD: Final = PREFIX_BYTES - LENGTH_BYTES
CORRELATION_ID_MAX: Final = 0xFFFF_FFFF

FLAG_HESSIAN: Final = 1
FLAGS_KNOWN: Final = FLAG_HESSIAN


class Place(enum.IntEnum):
    """The answer of OFFSETS about the place that a consumer group committed."""

    UNKNOWN = 0  # unknown
    SAME = 1  # the named message is right before the offset
    OTHER = 2  # the log ends before the offset, or has another message there


class KeyKind(enum.IntEnum):
    """What the key of a FIND is: the number of its field in ``RecordProperties``."""

    ANY = 0  # any key, or none
    TEXT = 1
    BYTES = 6
    INTEGER = 7  # 8 bytes with sign


class Command(enum.IntEnum):
    """Numbers of commands. They never change, like the field numbers in wire.proto.

    Reserved: 30 to 39 for transactions.
    """

    HELLO = 1
    PING = 2
    STATUS = 3
    PROVE = 4
    PUT = 10
    GET = 11
    OFFSETS = 12
    FETCH = 13
    VERIFY = 14
    FIND = 15
    BLOCKS = 16
    SEAL = 20
    ADOPT = 21
    REPLICATE = 40
    EPOCH_END = 41
    HAND_OVER = 42
    DIVERGED = 43
    REPAIR = 44
    ARCHIVE = 45


class Access(enum.Enum):
    """Whose requests a broker carries out; see ``vq.remoting.membership`` for the proof."""

    ANYONE = "anyone"
    #: Who knows the cluster's secret: brokers, and commands of operators, which read ZooKeeper.
    CLUSTER = "the cluster"
    #: Nodes of the broker's own group that know it.
    GROUP = "the group"


#: Who may send which command. A command without a row cannot be handled.
ACCESS: Final[Mapping[Command, Access]] = {
    # Answered by the connection itself, before anybody is known.
    Command.HELLO: Access.ANYONE,
    Command.PROVE: Access.ANYONE,
    # What clients do. Permissions of topics hold; users and their rights come with "Security".
    Command.PUT: Access.ANYONE,
    Command.GET: Access.ANYONE,
    Command.OFFSETS: Access.ANYONE,
    Command.FETCH: Access.ANYONE,
    # It shows what GET shows, and a node works at few of them at a time, in small steps.
    Command.FIND: Access.ANYONE,
    # Of operators, monitoring, and consumers that met damage: they change nothing. Their answers
    # have no bytes of messages, and VERIFY reads at a bounded rate.
    Command.PING: Access.ANYONE,
    Command.STATUS: Access.ANYONE,
    Command.VERIFY: Access.ANYONE,
    # It tells sizes and times, as STATUS does, and reads a bounded number of small indexes.
    Command.BLOCKS: Access.ANYONE,
    # They end and begin logs, and change the master. Commands send them for an operator: `vq topic
    # move`, `vq cluster switch`.
    Command.SEAL: Access.CLUSTER,
    Command.ADOPT: Access.CLUSTER,
    Command.HAND_OVER: Access.CLUSTER,
    # It reads and deletes messages for `vq cluster diverged`.
    Command.DIVERGED: Access.CLUSTER,
    # It reads archives, and makes blocks of them, for `vq archive`.
    Command.ARCHIVE: Access.CLUSTER,
    # What a node asks for counts for acknowledgements, and shows what is not committed yet.
    Command.REPLICATE: Access.GROUP,
    Command.EPOCH_END: Access.GROUP,
    Command.REPAIR: Access.GROUP,
}

#: Commands that may wait for data. They have a bound of their own, so that waiting reads do not
#: reduce the PUTs that a connection may have in flight.
READS: Final = frozenset({int(Command.GET), int(Command.FETCH)})

assert set(ACCESS) == set(Command)
assert PREFIX_BYTES == 20
assert limits.FRAME_HEADER_BYTES_MAX + PREFIX_BYTES < limits.FRAME_BYTES_MAX
assert limits.FRAME_BYTES_MAX_BEFORE_HELLO > PREFIX_BYTES
assert VERSION_MIN <= VERSION_MAX <= 255
