"""The file of an exported tree: one JSON document a line. Pure.

    {"format": "vq tree", "v": 1, "cluster": "default", "time_s": 1764403200.0, "vq": "…",
     "below": "", "secrets": false}
    {"path": "topics/t", "version": 3, "czxid": 17, "json": {"v": 1, …}}
    …
    {"end": true, "nodes": 2, "sha256": "…"}

Parents come before their children. A value that vq wrote is JSON in ``json``; another one is in
``text`` or ``base64``. The last line has the checksum of all lines before it, each with its end of
line: a file that was cut off, or changed by hand without it, is refused.
"""

import base64
import binascii
import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from vq.coordination.tree.coordinator import NODE_BYTES_MAX
from vq.errors import InvalidArgument
from vq.shown import shown, shown_error
from vq.version import __version__

FORMAT: Final = "vq tree"
FORMAT_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class ExportedNode:
    """A node of an exported tree; ``czxid`` has the order in which nodes were made."""

    path: str
    data: bytes
    version: int
    czxid: int


@dataclass(frozen=True, slots=True)
class TreeExport:
    """An exported tree.

    Attributes:
        cluster: The name of the cluster that it is of.
        time_ms: When it was exported, in milliseconds since 1970.
        below: Only this node and what lies below it; "": all.
        has_secrets: Whether the secret of the cluster is in it.
        nodes: The nodes, parents first.
    """

    cluster: str
    time_ms: int
    below: str
    has_secrets: bool
    nodes: tuple[ExportedNode, ...]


class TreeWriter:
    """Makes the lines of a file, one after the other."""

    def __init__(self) -> None:
        self.nodes = 0
        self._sum = hashlib.sha256()

    def begin(self, cluster: str, time_ms: int, below: str, *, secrets: bool) -> str:
        """Return the first line."""
        return self._line(
            {
                "format": FORMAT,
                "v": FORMAT_VERSION,
                "cluster": cluster,
                "time_s": time_ms / 1000,
                "vq": __version__,
                "below": below,
                "secrets": secrets,
            }
        )

    def node(self, node: ExportedNode) -> str:
        """Return the line of a node."""
        self.nodes += 1
        return self._line(
            {
                "path": node.path,
                "version": node.version,
                "czxid": node.czxid,
                **_value_of(node.data),
            }
        )

    def end(self) -> str:
        """Return the last line."""
        return _text({"end": True, "nodes": self.nodes, "sha256": self._sum.hexdigest()})

    def _line(self, document: dict[str, Any]) -> str:
        line = _text(document)
        self._sum.update(line.encode())
        return line


def read_tree(lines: Iterable[str]) -> TreeExport:
    """Return the tree of a file.

    Raises:
        InvalidArgument: It is no such file, of a later version, cut off, or changed.
    """
    found = _Reader()
    for number, line in enumerate(lines, 1):
        try:
            found.take(line)
        except (ValueError, KeyError, TypeError, RecursionError, binascii.Error) as error:
            raise InvalidArgument(
                f"line {number} is none of an exported tree: {shown_error(error)}: "
                f"{shown(line, 80)}"
            ) from error
    if found.header is None:
        raise InvalidArgument("the file is empty; it is no exported tree")
    if not found.has_ended:
        raise InvalidArgument(
            f"the file is cut off: it has {len(found.nodes)} nodes and no last line; export again"
        )
    header = found.header
    return TreeExport(
        str(header["cluster"]),
        int(header["time_s"] * 1000),
        str(header["below"]),
        bool(header["secrets"]),
        tuple(found.nodes),
    )


class _Reader:
    def __init__(self) -> None:
        self.header: dict[str, Any] | None = None
        self.nodes: list[ExportedNode] = []
        self.has_ended = False
        self._paths: set[str] = set()
        self._sum = hashlib.sha256()

    def take(self, line: str) -> None:
        if self.has_ended:
            raise ValueError("it follows the last line")
        document = json.loads(line)
        if self.header is None:
            self._begin(document)
        elif "end" in document:
            self._end(document)
            return
        else:
            self._node(document)
        self._sum.update(line.rstrip("\r\n").encode() + b"\n")

    def _begin(self, document: dict[str, Any]) -> None:
        if document["format"] != FORMAT:
            raise ValueError(f"format = {shown(document['format'])} is not {FORMAT!r}")
        if document["v"] != FORMAT_VERSION:
            raise InvalidArgument(
                f"the file has format v{shown(document['v'])}, this vq reads v{FORMAT_VERSION}; "
                "upgrade vq here"
            )
        self.header = document

    def _node(self, document: dict[str, Any]) -> None:
        path = document["path"]
        if not isinstance(path, str) or not path or any(not each for each in path.split("/")):
            raise ValueError(f"path = {shown(path)} is not that of a node below the root")
        if {".", ".."} & {*path.split("/")}:
            raise ValueError(f"path = {shown(path)} has a part that ZooKeeper refuses")
        if path in self._paths:
            raise ValueError(f"path = {shown(path)} comes twice")
        self._paths.add(path)
        data = _data_of(document)
        if len(data) > NODE_BYTES_MAX:
            raise ValueError(f"a value of {len(data)} bytes is above {NODE_BYTES_MAX}")
        version, czxid = document["version"], document["czxid"]
        if type(version) is not int or type(czxid) is not int or version < 0 or czxid < 0:
            raise ValueError(f"version, czxid = {shown((version, czxid))} are no numbers from 0 on")
        self.nodes.append(ExportedNode(path, data, version, czxid))

    def _end(self, document: dict[str, Any]) -> None:
        if document["nodes"] != len(self.nodes):
            raise ValueError(f"{len(self.nodes)} nodes came before it")
        if document["sha256"] != self._sum.hexdigest():
            raise ValueError("the checksum does not fit the lines before it: they were changed")
        self.has_ended = True


def _text(document: dict[str, Any]) -> str:
    return json.dumps(document, ensure_ascii=True) + "\n"


def _value_of(data: bytes) -> dict[str, Any]:
    """Return a value as a reader of the file likes it best; it must come back as it was."""
    try:
        document = json.loads(data)
        if isinstance(document, dict) and json.dumps(document).encode() == data:
            return {"json": document}
        text = data.decode()
    except (ValueError, RecursionError):
        return {"base64": base64.b64encode(data).decode()} if data else {"text": ""}
    return {"text": text}


def _data_of(document: dict[str, Any]) -> bytes:
    if "json" in document:
        return json.dumps(document["json"]).encode()
    if "text" in document:
        return str(document["text"]).encode()
    return base64.b64decode(document["base64"], validate=True)


def lines_of(text: str) -> Iterator[str]:
    """Yield the lines of a file that is in memory, each with its end."""
    yield from text.splitlines(keepends=True)
