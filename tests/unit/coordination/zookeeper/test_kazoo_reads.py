"""The request that reads many nodes: its bytes, and those of an answer, by hand."""

import struct

from kazoo.exceptions import NoAuthError

from vq.coordination.zookeeper.kazoo_reads import ReadMany

STAT = struct.pack("!qqqqiiiqiiq", 7, 8, 1, 2, 3, 0, 0, 9, 5, 0, 7)


def test_a_request_is_a_header_and_a_read_for_each_path() -> None:
    header = struct.pack("!iBi", 4, 0, -1)
    read = struct.pack("!i", 2) + b"/a" + b"\0"
    end = struct.pack("!iBi", -1, 1, -1)
    assert bytes(ReadMany(("/a", "/a")).serialize()) == (header + read) * 2 + end
    assert ReadMany.type == 22


def test_an_answer_has_a_value_a_missing_node_or_an_error_for_each() -> None:
    value = struct.pack("!iBi", 4, 0, 0) + struct.pack("!i", 5) + b"value" + STAT
    missing = struct.pack("!iBii", -1, 0, -101, -101)
    refused = struct.pack("!iBii", -1, 0, -102, -102)
    end = struct.pack("!iBi", -1, 1, -1)
    found = ReadMany.deserialize(b"head" + value + missing + refused + value + end, 4)
    assert found[0] == found[3]
    assert found[0][0] == b"value"
    assert (found[0][1].czxid, found[0][1].version, found[0][1].ephemeralOwner) == (7, 3, 9)
    assert found[1] is None
    assert isinstance(found[2], NoAuthError)
