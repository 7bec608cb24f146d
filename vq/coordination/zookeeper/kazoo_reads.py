"""One request of ZooKeeper that reads many nodes; kazoo has none. Used by ``zk`` alone.

It is ``multiRead`` of ZooKeeper 3.6 and later, which older servers refuse as unknown. Each node is
read by itself: the request is not one moment, and a missing node does not fail the others.
"""

from typing import Any, ClassVar, Final

from kazoo.client import KazooClient
from kazoo.exceptions import EXCEPTIONS, NoNodeError, UnimplementedError
from kazoo.protocol.serialization import (
    GetData,
    MultiHeader,
    int_struct,
    multiheader_struct,
    read_buffer,
    stat_struct,
)
from kazoo.protocol.states import ZnodeStat

#: What the server says that knows no such request.
Unknown: Final = UnimplementedError
_ERROR: Final = -1


class ReadMany:
    """The request, as kazoo's connection takes one."""

    type: ClassVar[int] = 22
    __slots__ = ("_paths",)

    def __init__(self, paths: tuple[str, ...]) -> None:
        self._paths = paths

    def serialize(self) -> bytearray:
        """Return the bytes of the request."""
        header = MultiHeader(GetData.type, False, -1).serialize()
        data = bytearray()
        for path in self._paths:
            data += header
            data += GetData(path, None).serialize()
        data += multiheader_struct.pack(-1, True, -1)
        return data

    @classmethod
    def deserialize(cls, data: bytes, offset: int) -> list[Any]:
        """Return a pair of value and stat, None, or an error for each node of an answer."""
        found: list[Any] = []
        while True:
            kind, done, _ = multiheader_struct.unpack_from(data, offset)
            offset += multiheader_struct.size
            if done:
                return found
            if kind == _ERROR:
                code = int_struct.unpack_from(data, offset)[0]
                offset += int_struct.size
                found.append(None if code == NoNodeError.code else EXCEPTIONS[code]())
                continue
            value, offset = read_buffer(data, offset)
            found.append((value, ZnodeStat._make(stat_struct.unpack_from(data, offset))))
            offset += stat_struct.size


def read_many(client: KazooClient, paths: tuple[str, ...]) -> Any:
    """Send the request; return kazoo's result of it, as its own calls do."""
    result = client.handler.async_result()
    client._call(ReadMany(tuple(client.chroot + path for path in paths)), result)
    return result
