"""A network of one run: each node in a namespace of its own, and links that drop packets.

    this process, its clients and ZooKeeper ── 10.77.0.1, a bridge ──┬── 10.77.0.11   b1/n1
                                                                    ├── 10.77.0.12   b1/n2
                                                                    └── …

A cut drops packets in one direction inside the node's namespace; nobody gets a reset. ``reset``
ends the connections to ZooKeeper. The run itself is in a namespace, too (``enter``), and everything
disappears when its processes end.
"""

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from vq.testing.waiting import block_until

_HUB: Final = "10.77.0.1"
_ENTERED: Final = "VQ_CHAOS_NAMESPACE"
_LINKS: Final = itertools.count(1)  # so far in this process
_FLAGS: Final = ("-nm",) if os.geteuid() == 0 else ("-Urnm",)
_TABLE: Final = """\
table inet chaos {
  chain out { type filter hook output priority 0; }
  chain in { type filter hook input priority 0; }
}
"""
_HUB_TABLE: Final = f"""\
table ip hub {{
  chain pre {{
    type nat hook prerouting priority -100;
    ip daddr {_HUB} dnat to 127.0.0.1
  }}
}}
"""


def not_installed() -> str:
    """Return which commands are missing and how to get them, "" if none is."""
    missing = [name for name in ("unshare", "nsenter", "ip", "nft") if shutil.which(name) is None]
    if not missing:
        return ""
    return f"not installed: {', '.join(missing)}; apt-get install util-linux iproute2 nftables"


def why_not() -> str:
    """Return why this machine has no network namespaces for us, "" if it has."""
    missing = not_installed()
    if missing:
        return missing
    script = "ip link add br0 type bridge && nft add table ip probe"
    tried = subprocess.run(
        ["unshare", *_FLAGS, "sh", "-c", script], capture_output=True, check=False, text=True
    )
    return tried.stderr.strip() if tried.returncode else ""


def enter(arguments: Sequence[str]) -> None:
    """Begin this program again in a network of its own; return if it is there already."""
    if _ENTERED in os.environ:
        _run("ip", "link", "set", "lo", "up")
        return
    environ = {**os.environ, _ENTERED: "1"}
    command = ["unshare", *_FLAGS, sys.executable, "-m", "support.chaos", *arguments]
    os.execvpe(command[0], command, environ)


def entered() -> bool:
    """Whether this process is in a network of its own."""
    return _ENTERED in os.environ


class Link:
    """The namespace of one node."""

    def __init__(self, number: int) -> None:
        self.address = f"10.77.0.{10 + number}"
        pipe = subprocess.PIPE
        # ``cat`` ends with us, and the namespace with it.
        self._holder = subprocess.Popen(["unshare", "-n", "cat"], stdin=pipe)
        pid = self._holder.pid
        ours = Path("/proc/self/ns/net").readlink()
        block_until(lambda: Path(f"/proc/{pid}/ns/net").readlink() != ours, "a new namespace")
        self.enter = ("nsenter", f"--net=/proc/{pid}/ns/net")
        outer = f"node{next(_LINKS)}"  # the one of an earlier run may take a while to go
        _run("ip", "link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", f"{pid}")
        _run("ip", "link", "set", outer, "master", "br0", "up")
        _run(*self.enter, "ip", "link", "set", "lo", "up")
        _run(*self.enter, "ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        _run(*self.enter, "ip", "link", "set", "eth0", "up")
        self._rules(_TABLE)

    def close(self) -> None:
        """Give the namespace up."""
        assert self._holder.stdin is not None
        self._holder.stdin.close()
        self._holder.wait()

    def cut(self, peer: str, *, ways: str = "both", ports: Sequence[int] = ()) -> None:
        """Drop packets ``in`` from a peer, ``out`` to it, or both; only those of its ``ports``."""
        listed = ", ".join(map(str, ports))
        if ways in {"out", "both"}:
            port = f"tcp dport {{ {listed} }}" if ports else ""
            self._rules(f"add rule inet chaos out ip daddr {peer} {port} counter drop\n")
        if ways in {"in", "both"}:
            port = f"tcp sport {{ {listed} }}" if ports else ""
            self._rules(f"add rule inet chaos in ip saddr {peer} {port} counter drop\n")

    def reset(self, peer: str, ports: Sequence[int]) -> None:
        """Answer every packet to a peer's ports with a reset."""
        listed = ", ".join(map(str, ports))
        rule = f"ip daddr {peer} tcp dport {{ {listed} }} counter reject with tcp reset"
        self._rules(f"add rule inet chaos out {rule}\n")

    def drop_clients(self, peer: str, port: int) -> None:
        """Drop what a peer sends to our port."""
        self._rules(f"add rule inet chaos in ip saddr {peer} tcp dport {port} counter drop\n")

    def heal(self) -> list[int]:
        """Let everything pass again; return how many packets each rule stopped."""
        stopped = self.stopped()
        self._rules("flush table inet chaos\n")
        return stopped

    def stopped(self) -> list[int]:
        """Return how many packets each rule has stopped so far."""
        listed = _run(*self.enter, "nft", "-j", "list", "table", "inet", "chaos")
        rules = [item["rule"]["expr"] for item in json.loads(listed)["nftables"] if "rule" in item]
        counters = [part["counter"] for rule in rules for part in rule if "counter" in part]
        return [counter["packets"] for counter in counters]

    def _rules(self, text: str) -> None:
        _run(*self.enter, "nft", "-f", "-", stdin=text)


class Network:
    """The bridge, and the links of all nodes. A context manager; only where ``entered``."""

    hub: Final = _HUB

    def __init__(self) -> None:
        self.links: dict[str, Link] = {}

    def __enter__(self) -> Self:
        _run("ip", "link", "add", "br0", "type", "bridge")
        _run("ip", "address", "add", f"{_HUB}/24", "dev", "br0")
        _run("ip", "link", "set", "br0", "up")
        Path("/proc/sys/net/ipv4/conf/br0/route_localnet").write_text("1")
        _run("nft", "-f", "-", stdin=_HUB_TABLE)  # ZooKeeper listens on 127.0.0.1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for link in self.links.values():
            link.close()
        _run("nft", "delete", "table", "ip", "hub")
        _run("ip", "link", "delete", "br0")

    def link(self, name: str) -> Link:
        """Return the link of a node, made when it is asked for first."""
        if name not in self.links:
            self.links[name] = Link(len(self.links) + 1)
        return self.links[name]


def _run(*command: str, stdin: str = "") -> str:
    ended = subprocess.run(command, input=stdin, capture_output=True, check=False, text=True)
    assert ended.returncode == 0, f"{' '.join(command)}: {ended.stderr.strip()}"
    return ended.stdout
