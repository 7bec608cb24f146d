"""A member of consumer groups, written from docs/protocol.md and docs/coordination.md alone.

It imports nothing of vq, and speaks with kazoo and sockets as a client in another language would.
``foreign_member.py ZOOKEEPER CLUSTER TOPIC`` does, in this order and in groups ``TOPIC-<mode>``:

    orderly       handles the messages of the topic in order, commits, and leaves
    keyed         leaves those with the key ``slow``; its last commit names what it handled
    concurrent    fails for ``bad``: makes the retry topic, sends a delayed copy there, handles it
    broadcasting  reads all and commits nothing

and prints one line of JSON for each: what it handled.
"""

import hashlib
import json
import random
import socket
import struct
import sys
import time
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

HELLO, PUT, GET, OFFSETS = 1, 10, 11, 12
TAG, PROPERTIES, CONTROL = 1, 2, 4
FRAME = struct.Struct(">I2sBBHHII")
RECORD = struct.Struct(">I4sQI")
DEADLINE_S = 60.0


# Protobuf ---------------------------------------------------------------------------------------
def varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def proto(**fields: Any) -> bytes:
    """``f3=7, f1="text"``: the fields by their numbers; what is missing or 0 is left out."""
    out = b""
    for name, value in sorted(fields.items(), key=lambda each: int(each[0][1:])):
        number = int(name[1:])
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, str | bytes):
                data = each.encode() if isinstance(each, str) else each
                out += varint(number << 3 | 2) + varint(len(data)) + data if data else b""
            elif isinstance(each, float):  # here: a fixed32
                out += varint(number << 3 | 5) + struct.pack("<I", int(each))
            elif each:
                out += varint(number << 3) + varint(int(each))
    return out


def parsed(data: bytes) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = number()
        if key & 7 == 0:
            value: Any = number()
        elif key & 7 == 2:
            size = number()
            value, at = data[at : at + size], at + size
        else:
            size = 8 if key & 7 == 1 else 4
            value, at = data[at : at + size], at + size
        found.setdefault(key >> 3, []).append(value)
    return found


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


# Records ----------------------------------------------------------------------------------------
class Message(NamedTuple):
    topic: str
    partition: int
    offset: int
    next_offset: int
    id: int
    tag: bytes
    properties: dict[int, list[Any]]
    content: bytes

    @property
    def key(self) -> str:
        return self.properties.get(1, [b""])[0].decode()

    @property
    def headers(self) -> dict[str, str]:
        pairs = map(parsed, self.properties.get(2, []))
        return {each[1][0].decode(): each.get(2, [b""])[0].decode() for each in pairs}


def encoded(message: Message, headers: Mapping[str, str], due_ms: int, to: str) -> bytes:
    entries = [proto(f1=name, f2=text) for name, text in sorted(headers.items())]
    properties = proto(f1=message.key, f2=entries, f3=due_ms, f12=to)
    flag = PROPERTIES | (TAG if message.tag else 0)
    parts = [message.tag] if message.tag else []
    body = b"".join(struct.pack(">I", len(each)) + each for each in (*parts, properties))
    rest = struct.pack(">QI", message.id, flag) + body + message.content
    return struct.pack(">I", len(rest) - 12) + hashlib.md5(rest).digest()[:4] + rest


def records(topic: str, partition: int, offset: int, data: bytes) -> Iterator[Message]:
    at = 0
    while at + 20 <= len(data):
        length, checksum, id_, flag = RECORD.unpack_from(data, at)
        end = at + 20 + length
        if end > len(data):
            return
        covered = data[at + 20 : end] if flag == CONTROL else data[at + 8 : end]
        assert flag >> 8 == 0, "this producer uses MD5"
        assert hashlib.md5(covered).digest()[:4] == checksum
        place, begin = at + 20, offset + at
        fields = []
        for bit in (TAG, PROPERTIES):
            size = 0
            if flag & bit:
                (size,) = struct.unpack_from(">I", data, place)
                place += 4
            fields.append(data[place : place + size])
            place += size
        if flag != CONTROL:
            tag, properties = fields[0], parsed(fields[1])
            content = data[place:end]
            yield Message(topic, partition, begin, offset + end, id_, tag, properties, content)
        at = end


# Brokers ----------------------------------------------------------------------------------------
class Broker:
    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port), 10)
        self.number = 0
        assert self.ask(HELLO, proto(f1=1, f2=1, f3="foreign"))[0] == 0

    def ask(self, command: int, header: bytes, body: bytes = b"") -> tuple[int, Any, bytes]:
        self.number += 1
        size = 16 + len(header) + len(body)
        head = FRAME.pack(size, b"vq", 1, 0, command, 0, self.number, len(header))
        self.socket.sendall(head + header + body)
        size, magic, _, _, _, status, number, length = FRAME.unpack(self.read(20))
        assert (magic, number) == (b"vq", self.number)
        rest = self.read(size - 16)
        return status, parsed(rest[:length]), rest[length:]

    def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            assert part, "the broker has closed the connection"
            data += part
        return data


class Cluster:
    def __init__(self, zookeeper: str, name: str, topic: str) -> None:
        self.topic = topic
        self.zk = KazooClient(zookeeper, timeout=6.0)
        self.zk.start(20)
        self.root = f"/vq/{name}"
        self.brokers: dict[tuple[str, int], Broker] = {}

    def path(self, path: str) -> str:
        return f"{self.root}/{path}"

    def get(self, path: str) -> tuple[Any, Any]:
        data, stat = self.zk.get(self.path(path))
        return (json.loads(data) if data else None), stat

    def children(self, path: str) -> list[str]:
        try:
            return sorted(self.zk.get_children(self.path(path)))
        except NoNodeError:
            return []

    def multi(self, *operations: tuple[Any, ...]) -> bool:
        """Each ``(kind, path, value, version or "ephemeral")``; whether all were done."""
        transaction = self.zk.transaction()
        for kind, path, value, how in operations:
            data = b"" if value is None else json.dumps({"v": 1, **value}).encode()
            if kind == "create":
                transaction.create(self.path(path), data, ephemeral=how == "ephemeral")
            elif kind == "set":
                transaction.set_data(self.path(path), data, version=how)
            elif kind == "check":
                transaction.check(self.path(path), how)
            else:
                transaction.delete(self.path(path), version=how)
        return not any(isinstance(each, Exception) for each in transaction.commit())

    def parents(self, *paths: str) -> None:
        for path in paths:
            self.zk.ensure_path(self.path(path))

    def partitions(self, topic: str) -> int:
        value, _ = self.get(f"topics/{topic}")
        assert value.get("phase", "ready") == "ready"
        return int(value["settings"]["partitions"])

    def ask(
        self, topic: str, partition: int, command: int, body: bytes = b"", **fields: Any
    ) -> Any:
        """Ask the master of the last span until it answers with status 0."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            value, _ = self.get(f"topics/{topic}/partitions/{partition}")
            group = value["placement"][-1]["group"]
            state, _ = self.get(f"brokers/{group}/state")
            node, _ = self.get(f"brokers/{group}/nodes/{state['master']}")
            address = node["host"], node["port"]
            if address not in self.brokers:
                self.brokers[address] = Broker(*address)
            header = proto(f1=topic, f2=partition, **fields)
            status, found, data = self.brokers[address].ask(command, header, body)
            if status == 0:
                return found, data
            assert time.monotonic() < deadline, (status, found)
            time.sleep(0.1)

    def create_topic(self, topic: str, partitions: int, hours: int, policy: str) -> None:
        """Do what "Create a topic" says."""
        if self.zk.exists(self.path(f"topics/{topic}")):
            return
        settings, _ = self.get(f"topics/{self.topic}")
        settings = {
            **settings["settings"],
            "partitions": partitions,
            "flush": "sync",
            "retention_hours": hours,
            "retention_policy": policy,
        }
        topic_id = f"{random.getrandbits(64):016x}"
        while True:
            found = {}
            for group in self.children("brokers"):
                state, _ = self.get(f"brokers/{group}/state")
                if self.zk.exists(self.path(f"brokers/{group}/nodes/{state['master']}")):
                    count, stat = self.get(f"brokers/{group}/partitions")
                    found[group] = count["open"], stat.version
            given = dict.fromkeys(found, 0)
            places = []
            for _ in range(partitions):
                group = min(
                    given, key=lambda each: (given[each], found[each][0] + given[each], each)
                )
                given[group] += 1
                places.append(group)
            operations: list[tuple[Any, ...]] = [
                (
                    "create",
                    f"topics/{topic}",
                    {
                        "id": topic_id,
                        "phase": "ready",
                        "settings": settings,
                    },
                    None,
                ),
                (
                    "create",
                    f"topics/{topic}/partitions",
                    {"version": 0, "partitions": [], "open": given},
                    None,
                ),
            ]
            for number, group in enumerate(places):
                span = {"group": group, "start": 0, "end": None}
                value = {"placement": [span], "state": "rw"}
                operations.append(("create", f"topics/{topic}/partitions/{number}", value, None))
            for group, count in given.items():
                opened, version = found[group]
                value = {"open": opened + count}
                operations.append(("set", f"brokers/{group}/partitions", value, version))
            if self.multi(*operations) or self.zk.exists(self.path(f"topics/{topic}")):
                return


# A member ---------------------------------------------------------------------------------------
class Member:
    def __init__(self, cluster: Cluster, group: str, contract: Mapping[str, Any]) -> None:
        self.cluster = cluster
        self.at = f"consumers/{group}"
        self.name = f"foreign-{random.getrandbits(32):x}"
        self.nonce = f"{random.getrandbits(64):016x}"
        self.generations: dict[tuple[str, int], int] = {}
        self.offsets: dict[tuple[str, int], tuple[int, int | None]] = {}  # and the node's version
        cluster.parents("consumers", f"{self.at}/members")
        self.contract(contract)
        self.node(sorted(contract["topics"]), create=True)
        self.contract(contract)

    def contract(self, wanted: Mapping[str, Any]) -> None:
        zk, path = self.cluster.zk, self.cluster.path(self.at)
        while True:
            data, stat = zk.get(path)
            present = json.loads(data) if data else None
            if present is None:
                value = wanted
            else:
                for term in ("model", "mode", "order", "strategy", "offset_store", "patterns"):
                    assert present.get(term) == wanted.get(term), term
                value = {**present, "topics": {**wanted["topics"], **present["topics"]}}
                if value == present:
                    return
            try:
                zk.set(path, json.dumps(value).encode(), version=stat.version)
            except Exception as error:
                if "BadVersion" not in type(error).__name__:
                    raise

    def node(self, topics: list[str], *, create: bool = False) -> None:
        value = {"v": 1, "topics": topics, "nonce": self.nonce, "host": "", "pid": 0, "since_ms": 0}
        path, data = self.cluster.path(f"{self.at}/members/{self.name}"), json.dumps(value).encode()
        if create:
            self.cluster.zk.create(path, data, ephemeral=True)
        else:
            self.cluster.zk.set(path, data)

    def claim_all(self, topic: str) -> None:
        """This member is alone, so the plan gives it everything."""
        names = self.cluster.children(f"{self.at}/members")
        assert [each for each in names if not each.endswith("~")] == [self.name]
        kinds = ("owners", "offsets", "assignment")
        self.cluster.parents(*(f"{self.at}/{kind}/{topic}" for kind in kinds))
        for number in range(self.cluster.partitions(topic)):
            assignment = f"{self.at}/assignment/{topic}/{number}"
            owner = f"{self.at}/owners/{topic}/{number}"
            while True:
                try:
                    _, stat = self.cluster.get(assignment)
                except NoNodeError:
                    self.cluster.multi(
                        ("create", assignment, {"member": "", "generation": 0}, None)
                    )
                    continue
                generation = stat.version + 1
                value = {"member": self.name, "generation": generation}
                if self.cluster.multi(
                    ("set", assignment, value, stat.version), ("create", owner, value, "ephemeral")
                ):
                    self.generations[topic, number] = generation
                    break
                time.sleep(0.1)
            try:
                committed, stat = self.cluster.get(f"{self.at}/offsets/{topic}/{number}")
                assert "stopped" not in committed
                self.offsets[topic, number] = committed["offset"], stat.version
            except NoNodeError:
                found, _ = self.cluster.ask(topic, number, OFFSETS)
                self.offsets[topic, number] = found.get(1, [0])[0], None
                self.commit(topic, number, self.offsets[topic, number][0])

    def commit(
        self, topic: str, number: int, offset: int, last: Message | None = None, **more: Any
    ) -> None:
        node, _ = self.cluster.get(f"topics/{topic}")
        value = {"offset": offset, "time_ms": int(time.time() * 1000), "member": self.name}
        value |= {"topic_id": node["id"], **more}
        if last is not None:
            value["message_id"] = last.id
        path = f"{self.at}/offsets/{topic}/{number}"
        version = self.offsets[topic, number][1]
        write = ("create", path, value, None) if version is None else ("set", path, value, version)
        fence = f"{self.at}/assignment/{topic}/{number}"
        assert self.cluster.multi(("check", fence, None, self.generations[topic, number]), write)
        self.offsets[topic, number] = offset, 0 if version is None else version + 1

    def messages(self, topic: str, number: int, wait_ms: int = 0) -> list[Message]:
        at = self.offsets[topic, number][0]
        _, data = self.cluster.ask(topic, number, GET, f3=at, f4=1 << 20, f5=wait_ms, f9=True)
        return list(records(topic, number, at, data))

    def leave(self) -> None:
        for topic, number in self.generations:
            owner = f"{self.at}/owners/{topic}/{number}"
            fence = f"{self.at}/assignment/{topic}/{number}"
            version = self.generations[topic, number]
            assert self.cluster.multi(("check", fence, None, version), ("delete", owner, None, 0))
        self.cluster.zk.delete(self.cluster.path(f"{self.at}/members/{self.name}"))


def contract_of(topic: str, model: str = "clustering", **terms: Any) -> dict[str, Any]:
    version = 2 if terms else 1
    return {"v": version, "model": model, "start": "earliest", "topics": {topic: ""}, **terms}


def orderly(cluster: Cluster) -> list[str]:
    topic = cluster.topic
    member, handled = Member(cluster, f"{topic}-orderly", contract_of(topic)), []
    member.claim_all(topic)
    for number in range(cluster.partitions(topic)):
        for message in member.messages(topic, number):
            handled.append(message.content.decode())
            member.commit(topic, number, message.next_offset, message)
    member.leave()
    return handled


def keyed(cluster: Cluster) -> list[str]:
    topic = cluster.topic
    member, handled = Member(cluster, f"{topic}-keyed", contract_of(topic, mode="keyed")), []
    member.claim_all(topic)
    for number in range(cluster.partitions(topic)):
        last, ahead, place = None, [], None
        for message in member.messages(topic, number):
            if message.key == "slow":
                place = message.offset if place is None else place
                continue
            handled.append(message.content.decode())
            if place is None:
                last = message
            else:
                ahead.append([message.offset, message.id])
        end = place if place is not None or last is None else last.next_offset
        if end is not None:
            member.commit(topic, number, end, last, **({"ahead": ahead} if ahead else {}))
    member.leave()
    return handled


def concurrent(cluster: Cluster) -> list[str]:
    topic = cluster.topic
    group = f"{topic}-concurrent"
    failure = {
        "on_failure": "retry-topic",
        "max_attempts": 1,
        "retry_backoff_s": [0.1],
        "retry_topic_s": [1.0, 5.0],
        "on_bad_record": "stop",
    }
    contract = contract_of(topic, mode="concurrent", failure=failure)
    member, handled = Member(cluster, group, contract), []
    member.claim_all(topic)
    retries, sequence, producer = f"_vq.retry.{group}", 0, random.getrandbits(62) | 1
    for number in range(cluster.partitions(topic)):
        for message in member.messages(topic, number):
            if message.content != b"bad":
                handled.append(message.content.decode())
            else:
                cluster.create_topic(retries, cluster.partitions(topic), 72, "keep")
                cluster.create_topic("_vq.delayed", 8, 1, "delete")
                contract["topics"][retries] = ""
                member.contract(contract)
                now_ms = int(time.time() * 1000)
                told = {
                    "_vq.origin": f"{topic}-{number}@{message.offset}",
                    "_vq.attempts": "1",
                    "_vq.first-failed": str(now_ms),
                    "_vq.reason": "it is bad",
                    "_vq.redelivery": "1",
                }
                to = f"{retries}-{(number + 1) % cluster.partitions(retries)}"
                record = encoded(message, {**message.headers, **told}, now_ms + 1_000, to)
                waits = 4 * (zlib.crc32(to.encode()) % (cluster.partitions("_vq.delayed") // 4))
                stamp = {"f5": producer, "f7": sequence}
                crc = float(crc32c(record))
                cluster.ask("_vq.delayed", waits, PUT, record, f3=1, f4=crc, **stamp)
            member.commit(topic, number, message.next_offset, message)
    member.node(sorted([topic, retries]))
    member.claim_all(retries)
    deadline = time.monotonic() + DEADLINE_S
    while "bad" not in handled and time.monotonic() < deadline:
        for number in range(cluster.partitions(retries)):
            for copy in member.messages(retries, number, 200):
                assert copy.headers["_vq.redelivery"] == "1"
                assert copy.headers["_vq.origin"].startswith(f"{topic}-")
                handled.append(copy.content.decode())
                member.commit(retries, number, copy.next_offset, copy)
    member.leave()
    return handled


def broadcasting(cluster: Cluster) -> list[str]:
    topic = cluster.topic
    member = Member(cluster, f"{topic}-broadcasting", contract_of(topic, "broadcasting"))
    numbers = range(cluster.partitions(topic))
    member.offsets = {(topic, number): (0, None) for number in numbers}
    handled = [m.content.decode() for number in numbers for m in member.messages(topic, number)]
    member.leave()
    return handled


def main() -> None:
    cluster = Cluster(*sys.argv[1:])
    for each in (orderly, keyed, concurrent, broadcasting):
        print(json.dumps({each.__name__: each(cluster)}), flush=True)
    cluster.zk.stop()
    assert not any(name == "vq" or name.startswith("vq.") for name in sys.modules)


if __name__ == "__main__":
    main()
