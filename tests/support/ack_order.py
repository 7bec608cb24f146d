"""Checks in a trace that no acknowledgement was sent before its bytes were durable.

The trace has the broker's writes to block files, its fdatasync, fsync and syncfs calls, and the
bytes of its connections in both directions. A PUT's reply names the offset of its batch, the
request names the partition, and the block file at the end says how far the batch reaches. Then:

    pwritev of the batch ended ≤ fdatasync of that file began … ended ≤ write of the reply began

and the names of a new block and of its directories were synced before its first reply, too. The
effect of ``syncfs`` depends on the file system. On ext4 all earlier writes are durable when it
ends. On XFS they are on the device, and durable after an fdatasync or fsync on that file system
that began later has ended. On any other file system it proves nothing.
"""

import re
import struct
import subprocess
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from support.block_files import read_partition
from support.strace import Call

from vq.model import Address
from vq.remoting.wire_pb2 import PutRequest, PutResponse

#: What to trace for this; long strings, since the bytes of frames are read from the trace.
OPTIONS = (
    *("-yy", "-xx", "-s", "1000000"),
    "-etrace=pwrite64,pwritev,pwritev2,fdatasync,fsync,syncfs,openat,mkdir,rename,ftruncate,"
    "fallocate,read,recvfrom,recvmsg,write,writev,sendto,sendmsg",
)
_PREFIX = struct.Struct(">IHBBHHII")
_PUT = 10
_CONTROL_BYTES = 88
_FD = re.compile(r"^\d+<((?:->|[^>])*)>")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_HEX = re.compile(r"\\x([0-9a-f]{2})")
_POSITION = re.compile(r", (\d+)(?:, (?:0|RWF_\w+))?$")


@dataclass
class Order:
    """The result: the number of acknowledgements, and those that came too early."""

    acknowledged: int = 0
    early: list[str] = field(default_factory=list)
    syncs: set[str] = field(default_factory=set)  # which calls made something durable
    injected: int = 0  # errors that strace injected
    after_failure: list[str] = field(default_factory=list)  # acknowledged behind one
    synced_again: list[str] = field(default_factory=list)  # synced again behind one


@dataclass
class _File:
    written: int = 0
    on_device: int = 0  # maybe in its volatile cache
    durable: int = 0


@dataclass
class _Begun:
    """The writes before the begin of a sync; only these are durable when it ends."""

    written: dict[str, int]
    on_device: dict[str, int]
    names: set[str]
    names_on_device: set[str]


@cache
def file_system_of(path: str) -> tuple[int, str]:
    """Return the number and the kind of the file system of a path, or of what is left of it."""
    place = Path(path)
    while not place.exists():
        place = place.parent
    command = ["findmnt", "-n", "-o", "FSTYPE", "-T", str(place)]
    kind = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return place.stat().st_dev, kind[-1]


class _Reader:
    """Goes through the calls once, in the order in which they were seen."""

    def __init__(self, data: Path, address: Address) -> None:
        self.order = Order()
        self._data = data
        self._served = f"TCP:[{address}->"  # connections that we accepted; not ZooKeeper's
        self._files: dict[str, _File] = defaultdict(_File)
        self._unsynced_names: set[str] = set()
        self._names_on_device: set[str] = set()
        self._begun: dict[int, _Begun] = {}
        self._inbound: dict[str, bytearray] = defaultdict(bytearray)
        self._outbound: dict[str, bytearray] = defaultdict(bytearray)
        self._requests: dict[tuple[str, int], tuple[str, int]] = {}
        self._batches: dict[tuple[str, int], dict[int, int]] = {}
        self._failed: set[str] = set()

    def begin(self, call: Call) -> None:
        if call.name in {"fdatasync", "fsync", "syncfs"}:
            if _path_of(call) in self._failed:
                self.order.synced_again.append(_path_of(call))
            # Only what had been written when the call began is durable when it ends.
            self._begun[id(call)] = _Begun(
                {path: file.written for path, file in self._files.items()},
                {path: file.on_device for path, file in self._files.items()},
                set(self._unsynced_names),
                set(self._names_on_device),
            )
        elif call.name in {"write", "writev", "sendto", "sendmsg"}:
            self._send(call)

    def end(self, call: Call) -> None:
        if call.injected:
            self.order.injected += 1
            self._failed.add(_path_of(call))
        if call.result is None or call.result < 0:
            return
        path = _path_of(call)
        if call.name.startswith("pwrite"):
            position = _POSITION.search(call.arguments)
            assert position is not None, call.arguments[-80:]
            file = self._files[path]
            file.written = max(file.written, int(position[1]) + call.result)
        elif call.name in {"fdatasync", "fsync", "syncfs"}:
            self._synced(call, path)
        elif (call.name == "openat" and "O_CREAT" in call.arguments) or call.name == "mkdir":
            self._unsynced_names.add(_strings(call)[0].decode())
        elif call.name in {"read", "recvfrom", "recvmsg"} and path.startswith(self._served):
            self._receive(path, b"".join(_strings(call))[: call.result])

    def _synced(self, call: Call, path: str) -> None:
        begun = self._begun.pop(id(call))
        device, kind = file_system_of(path)
        if path.endswith(".block") or call.name == "syncfs":
            self.order.syncs.add(call.name)
        if call.name == "syncfs":
            if kind == "ext4":
                self._durable(begun.written, begun.names, device)
            elif kind == "xfs":
                for each, reached in begun.written.items():
                    if file_system_of(each)[0] == device:
                        self._files[each].on_device = max(self._files[each].on_device, reached)
                self._names_on_device |= {n for n in begun.names if file_system_of(n)[0] == device}
            return
        own = {path: begun.written[path]} if path in begun.written else {}
        names = {name for name in begun.names if str(Path(name).parent) == path}
        self._durable(own, names, device)
        if kind == "xfs":  # it flushed the device, also for what others had written to it
            self._durable(begun.on_device, begun.names_on_device, device)

    def _durable(self, reached: dict[str, int], names: set[str], device: int) -> None:
        """Note what is durable on one file system."""
        for path, length in reached.items():
            if file_system_of(path)[0] == device:
                self._files[path].durable = max(self._files[path].durable, length)
        self._unsynced_names -= {name for name in names if file_system_of(name)[0] == device}

    def _receive(self, connection: str, data: bytes) -> None:
        for status, command, correlation, header in _frames(self._inbound[connection], data):
            assert status == 0
            if command == _PUT:
                request = PutRequest.FromString(header)
                self._requests[connection, correlation] = (request.topic, request.partition)

    def _send(self, call: Call) -> None:
        connection = _path_of(call)
        if not connection.startswith(self._served) or call.result is None or call.result < 0:
            return
        data = b"".join(_strings(call))[: call.result]
        for status, command, correlation, header in _frames(self._outbound[connection], data):
            if command == _PUT and status == 0:
                key = self._requests[connection, correlation]
                self._acknowledged(key, PutResponse.FromString(header).offset)

    def _acknowledged(self, key: tuple[str, int], offset: int) -> None:
        topic, partition = key
        directory = self._data / topic / str(partition)
        if key not in self._batches:
            self._batches[key] = dict(read_partition(directory).batches)
        start = offset - _CONTROL_BYTES
        end = self._batches[key][start]
        block = max(path for path in directory.glob("*.block") if int(path.stem) <= start)
        durable = int(block.stem) + self._files[str(block)].durable
        self.order.acknowledged += 1
        text = f"[{start}, {end}) of {topic}-{partition} was acknowledged"
        if self._failed:
            self.order.after_failure.append(text)
        if durable < end:
            self.order.early.append(f"{text} when {durable} was durable")
        for name in (block, directory, directory.parent):
            if str(name) in self._unsynced_names:
                self.order.early.append(f"{text} before the name {name} was durable")


def check_order(calls: Sequence[Call], data: Path, address: Address) -> Order:
    """Return what the trace of the broker at ``address`` with its data in ``data`` says."""
    reader = _Reader(data, address)
    moments: list[tuple[int, int, Call]] = []
    for call in calls:
        moments.append((call.begin, 0, call))
        moments.append((call.end, 1, call))
    moments.sort(key=lambda each: each[:2])
    for _, is_end, call in moments:
        if is_end:
            reader.end(call)
        else:
            reader.begin(call)
    return reader.order


def _path_of(call: Call) -> str:
    match = _FD.match(call.arguments)
    return _unhex(match[1]).decode() if match is not None else ""


def _strings(call: Call) -> list[bytes]:
    assert '"...' not in call.arguments, "the trace cut a string short"
    return [_unhex(each) for each in _STRING.findall(call.arguments)]


def _unhex(text: str) -> bytes:
    if not text.startswith("\\x"):
        return text.encode()
    return bytes.fromhex("".join(_HEX.findall(text)))


def _frames(buffer: bytearray, data: bytes) -> list[tuple[int, int, int, bytes]]:
    """Add bytes of a stream; return status, command, correlation id, header of whole frames."""
    buffer += data
    found = []
    while len(buffer) >= _PREFIX.size:
        length, magic, _, _, command, status, correlation, size = _PREFIX.unpack_from(buffer)
        assert magic == 0x7671, "the stream is out of step"
        if len(buffer) < 4 + length:
            break
        header = bytes(buffer[_PREFIX.size : _PREFIX.size + size])
        found.append((status, command, correlation, header))
        del buffer[: 4 + length]
    return found
