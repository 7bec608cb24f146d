"""The changes that a ZooKeeper server applied, in order, read from its transaction log on disk.

Watches and polls miss changes; the log has them all. Format: ZooKeeper 3.4 and later,
org.apache.zookeeper.server.persistence.FileTxnLog and zookeeper.jute (class TxnHeader and the
...Txn classes). Only what changes a node is returned; an end of a session deletes its nodes.
"""

import json
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from support.judge import Claim, Commit, Presence, Reign

_FILE_HEADER = struct.Struct(">4siq")
_ENTRY = struct.Struct(">qi")  # checksum, length
_TXN_HEADER = struct.Struct(">qiqqi")  # session, cxid, zxid, time, type
_CREATE, _DELETE, _SET, _MULTI, _CLOSE = 1, 2, 5, 14, -11
_CREATES = {_CREATE, 15, 19, 21}  # plain, create2, container, ttl
_END_OF_ENTRY = 0x42


class Change(NamedTuple):
    """One change of one node; ``data`` is None when it was deleted. ``order`` rises.

    ``at`` is when, in seconds of the wall clock of the server that led. ``closes``: the end of a
    session deleted it.
    """

    order: int
    session: int
    path: str
    data: bytes | None
    at: float = 0.0
    closes: bool = False


def read_changes(server: Path) -> list[Change]:
    """Return every change in the logs of a server's directory, in order.

    The server may run: an entry that is being written is left out.
    """
    changes: list[Change] = []
    files = (server / "data" / "version-2").glob("log.*")
    for path in sorted(files, key=lambda each: int(each.suffix[1:], 16)):
        changes += _read_file(path.read_bytes())
    return changes


def _read_file(data: bytes) -> Iterator[Change]:
    if len(data) < _FILE_HEADER.size:
        return
    magic, _, _ = _FILE_HEADER.unpack_from(data)
    assert magic == b"ZKLG", f"not a transaction log: {magic!r}"
    position = _FILE_HEADER.size
    while position + _ENTRY.size < len(data):
        _, length = _ENTRY.unpack_from(data, position)
        end = position + _ENTRY.size + length
        if length <= 0 or end >= len(data) or data[end] != _END_OF_ENTRY:
            return
        yield from _read_entry(data[position + _ENTRY.size : end])
        position = end + 1


def _read_entry(entry: bytes) -> Iterator[Change]:
    session, _, zxid, at_ms, kind = _TXN_HEADER.unpack_from(entry)
    order, at = zxid << 16, at_ms / 1000
    body = entry[_TXN_HEADER.size :]
    if kind not in {_MULTI, _CLOSE}:
        yield from _change(order, session, kind, body, at)
        return
    count = int.from_bytes(body[:4], "big", signed=True)
    position = 4
    for number in range(count):
        if kind == _CLOSE:  # the paths of its ephemeral nodes
            path, position = _buffer(body, position)
            yield Change(order + number, session, path.decode(), None, at, closes=True)
            continue
        part_kind = int.from_bytes(body[position : position + 4], "big", signed=True)
        part, position = _buffer(body, position + 4)
        yield from _change(order + number, session, part_kind, part, at)


def _change(order: int, session: int, kind: int, body: bytes, at: float) -> Iterator[Change]:
    if kind not in {*_CREATES, _DELETE, _SET}:
        return
    path, position = _buffer(body, 0)
    data = None if kind == _DELETE else _buffer(body, position)[0]
    yield Change(order, session, path.decode(), data, at)


def _buffer(data: bytes, position: int) -> tuple[bytes, int]:
    length = max(0, int.from_bytes(data[position : position + 4], "big", signed=True))
    start = position + 4
    return data[start : start + length], start + length


def read_all_changes(directory: Path) -> list[Change]:
    """Return the changes that the logs of all servers of an ensemble have, each once, in order.

    A server that was away may have got a snapshot instead of the changes; another one has them.
    """
    found = {
        each.order: each for server in directory.glob("server-*") for each in read_changes(server)
    }
    return [found[order] for order in sorted(found)]


def group_evidence(
    server: Path, cluster: str, group: str, topic: str
) -> tuple[list[Claim], list[Commit]]:
    """Return the claims and the commits that ZooKeeper took for one topic of a consumer group."""
    return claims_and_commits(read_changes(server), cluster, group, topic)


def claims_and_commits(
    changes: Iterable[Change], cluster: str, group: str, topic: str
) -> tuple[list[Claim], list[Commit]]:
    """Return the claims and the commits among changes."""
    root = f"/vq/{cluster}/consumers/{group}"
    claims: list[Claim] = []
    commits: list[Commit] = []
    for change in changes:
        parent, _, number = change.path.rpartition("/")
        if not change.data or not number.isdecimal():
            continue
        if parent == f"{root}/assignment/{topic}":
            member = json.loads(change.data)["member"]
            if member:
                claims.append(Claim(change.order, int(number), member))
        elif parent == f"{root}/offsets/{topic}":
            value = json.loads(change.data)
            commits.append(Commit(change.order, int(number), value["member"], value["offset"]))
    return claims, commits


def reigns(changes: Iterable[Change], cluster: str) -> list[Reign]:
    """Return who led which broker group in which epoch."""
    found: list[Reign] = []
    for change in changes:
        head, _, name = change.path.rpartition("/")
        root, _, group = head.rpartition("/")
        if name == "state" and root == f"/vq/{cluster}/brokers" and change.data:
            value = json.loads(change.data)
            insync = tuple(value["insync"])
            reign = Reign(change.order, group, value["epoch"], value["master"], insync, change.at)
            found.append(reign)
    return found


def presences(changes: Iterable[Change], cluster: str) -> list[Presence]:
    """Return which nodes of broker groups were registered, and said what of their disks."""
    found: list[Presence] = []
    for change in changes:
        head, _, node = change.path.rpartition("/")
        root, _, group = head.removesuffix("/nodes").rpartition("/")
        if head.endswith("/nodes") and root == f"/vq/{cluster}/brokers":
            there = change.data is not None
            full = bool(change.data) and json.loads(change.data).get("full", False)
            found.append(Presence(change.order, group, node, there, full, change.at))
    return found
