"""The bytes of a frame: layout, the table of commands, flag bits.

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
from typing import Final, TypeAlias

from google.protobuf.message import Message

from vq import limits
from vq.remoting import wire_pb2 as wire
from vq.security.rules import Resource, Right

Header: TypeAlias = Message

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
#: Of answers alone: the header has a ``Delay``, beside what it has otherwise.
FLAG_DELAY: Final = 2
#: Of answers to FETCH alone: further ones follow to the same request.
FLAG_AGAIN: Final = 4
#: In requests.
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


class Access(enum.Enum):
    """Whose requests a broker carries out; see ``vq.remoting.membership`` for the proof."""

    ANYONE = "anyone"
    #: Who knows the cluster's secret: brokers, and commands of operators, which read ZooKeeper.
    CLUSTER = "the cluster"
    #: Nodes of the broker's own group that know it.
    GROUP = "the group"


_ANYONE, _CLUSTER, _GROUP = Access

#: What a user needs to send a command, where a broker looks at rights; (): nothing.
Needs: TypeAlias = tuple[Right, Resource] | tuple[()]

_NOTHING: Final[Needs] = ()
_READ_TOPIC: Final[Needs] = (Right.READ, Resource.TOPIC)
_WRITE_TOPIC: Final[Needs] = (Right.WRITE, Resource.TOPIC)
_DESCRIBE_TOPIC: Final[Needs] = (Right.DESCRIBE, Resource.TOPIC)
_DESCRIBE_CLUSTER: Final[Needs] = (Right.DESCRIBE, Resource.CLUSTER)
_READ_GROUP: Final[Needs] = (Right.READ, Resource.GROUP)
_DESCRIBE_GROUP: Final[Needs] = (Right.DESCRIBE, Resource.GROUP)
_WRITE_GROUP: Final[Needs] = (Right.WRITE, Resource.GROUP)
_WRITE_TRANSACTIONAL_ID: Final[Needs] = (Right.WRITE, Resource.TRANSACTIONAL_ID)


class Command(enum.IntEnum):
    """Each command: its number, who may send it, headers of request and answer, what it needs.

    Numbers never change, like the field numbers in wire.proto. Reserved: 34 to 39 for transactions.

    Attributes:
        access: Who may send it.
        request, response: The headers.
        may_wait: It may wait for data. Such reads have a bound of their own, so that they do not
            reduce the PUTs that a connection may have in flight.
        needs: Which right a user needs, and on what. The topic, group or id is the one that the
            request names; some need more (``broker.security.demands``). None: users do not send it.
    """

    access: Access
    request: type[Header]
    response: type[Header]
    may_wait: bool
    needs: Needs | None

    def __new__(
        cls,
        number: int,
        access: Access,
        request: type[Header],
        response: type[Header],
        may_wait: bool = False,
        needs: Needs | None = None,
    ) -> "Command":
        """Make a row of the table."""
        row = int.__new__(cls, number)
        row._value_ = number
        row.access = access
        row.request = request
        row.response = response
        row.may_wait = may_wait
        row.needs = needs
        return row

    # Answered by the connection itself, before anybody is known.
    HELLO = 1, _ANYONE, wire.HelloRequest, wire.HelloResponse, False, _NOTHING
    PROVE = 4, _ANYONE, wire.ProveRequest, wire.ProveResponse, False, _NOTHING
    AUTHENTICATE = (
        5,
        _ANYONE,
        wire.AuthenticateRequest,
        wire.AuthenticateResponse,
        False,
        _NOTHING,
    )
    # Of operators, monitoring, and consumers that met damage: they change nothing. Their answers
    # have no bytes of messages, and VERIFY reads at a bounded rate.
    PING = 2, _ANYONE, wire.PingRequest, wire.PingResponse, False, _NOTHING
    STATUS = 3, _ANYONE, wire.StatusRequest, wire.StatusResponse, False, _DESCRIBE_CLUSTER
    VERIFY = 14, _ANYONE, wire.VerifyRequest, wire.VerifyResponse, False, _READ_TOPIC
    # It tells sizes and times, as STATUS does, and reads a bounded number of small indexes.
    BLOCKS = 16, _ANYONE, wire.BlocksRequest, wire.BlocksResponse, False, _DESCRIBE_TOPIC
    # What clients do. Permissions of topics hold, and the rights of users (``needs``).
    PUT = 10, _ANYONE, wire.PutRequest, wire.PutResponse, False, _WRITE_TOPIC
    GET = 11, _ANYONE, wire.GetRequest, wire.GetResponse, True, _READ_TOPIC
    OFFSETS = 12, _ANYONE, wire.OffsetsRequest, wire.OffsetsResponse, False, _DESCRIBE_TOPIC
    FETCH = 13, _ANYONE, wire.FetchRequest, wire.FetchResponse, True, _READ_TOPIC
    # It shows what GET shows, and a node works at few of them at a time, in small steps.
    FIND = 15, _ANYONE, wire.FindRequest, wire.FindResponse, False, _READ_TOPIC
    CANCEL = 17, _ANYONE, wire.CancelRequest, wire.CancelResponse, False, _WRITE_TOPIC
    TRANSACT = 30, _ANYONE, wire.TransactRequest, wire.TransactResponse, False, _WRITE_TOPIC
    FENCE = 31, _ANYONE, wire.FenceRequest, wire.FenceResponse, False, _WRITE_TRANSACTIONAL_ID
    TRANSACTIONS = (
        32,
        _ANYONE,
        wire.TransactionsRequest,
        wire.TransactionsResponse,
        False,
        _DESCRIBE_CLUSTER,
    )
    CHECK = 33, _ANYONE, wire.CheckRequest, wire.CheckResponse, True, _WRITE_GROUP
    # Of shared groups. They show which messages a group has, not what is in these.
    RECEIVE = 50, _ANYONE, wire.ReceiveRequest, wire.ReceiveResponse, True, _READ_GROUP
    SETTLE = 51, _ANYONE, wire.SettleRequest, wire.SettleResponse, False, _READ_GROUP
    SHARED = 52, _ANYONE, wire.SharedRequest, wire.SharedResponse, False, _DESCRIBE_GROUP
    # They end and begin logs, and change the master. Commands send them for an operator: `vq topic
    # move`, `vq cluster switch`.
    SEAL = 20, _CLUSTER, wire.SealRequest, wire.SealResponse
    ADOPT = 21, _CLUSTER, wire.AdoptRequest, wire.AdoptResponse
    HAND_OVER = 42, _CLUSTER, wire.HandOverRequest, wire.HandOverResponse
    # It reads and deletes messages for `vq cluster diverged`.
    DIVERGED = 43, _CLUSTER, wire.DivergedRequest, wire.DivergedResponse
    # It reads archives, and makes blocks of them, for `vq archive`.
    ARCHIVE = 45, _CLUSTER, wire.ArchiveRequest, wire.ArchiveResponse
    # What a node asks for counts for acknowledgements, and shows what is not committed yet.
    REPLICATE = 40, _GROUP, wire.ReplicateRequest, wire.FetchResponse, True
    EPOCH_END = 41, _GROUP, wire.EpochEndRequest, wire.EpochEndResponse
    REPAIR = 44, _GROUP, wire.RepairRequest, wire.RepairResponse


#: The rows by number. A number is looked up for each frame, and an enum's own way is slow.
COMMANDS: Final[Mapping[int, Command]] = {command.value: command for command in Command}
#: Commands that may wait for data.
READS: Final = frozenset(number for number, command in COMMANDS.items() if command.may_wait)

assert PREFIX_BYTES == 20
assert limits.FRAME_HEADER_BYTES_MAX + PREFIX_BYTES < limits.FRAME_BYTES_MAX
assert limits.FRAME_BYTES_MAX_BEFORE_HELLO > PREFIX_BYTES
assert VERSION_MIN <= VERSION_MAX <= 255
