"""Reports of Spark: made by ``vq report`` in a process of its own, which the console bounds."""

import asyncio
import contextlib
import importlib.util
import json
import os
import signal
import sys
from enum import StrEnum
from typing import Any, Final
from weakref import WeakSet

from vq.client.cluster import ClusterClient
from vq.errors import InvalidState, VqError
from vq.extras import install_command
from vq.shown import shown

#: The program that makes a report; Spark's memory is its own, not the console's.
PROGRAM: list[str] = [sys.executable, "-m", "vq.cli.main"]
#: Bytes of a report that are taken; ``--top`` bounds its rows.
REPORT_BYTES_MAX: Final = 4 * 1024 * 1024
#: Seconds after which a report is ended.
REPORT_S_MAX: Final = 3600.0
_ROWS: Final = 200
#: The machine of the console has other work, too.
_MASTER: Final = "local[2]"
_SAID_BYTES: Final = 4_000
_CHUNK_BYTES: Final = 64 * 1024
_PACKAGES: Final = ("pyspark", "pyarrow")
#: Variables with secrets of the console, which a report does not need.
_OWN_VARIABLES: Final = "VQ_CONSOLE_"
_BUSY: Final[WeakSet[ClusterClient]] = WeakSet()


class ReportKind(StrEnum):
    """What a report is on."""

    LAG = "lag"
    CAPACITY = "capacity"
    AUDIT = "audit"


class ReportFailed(VqError):
    """No report was made; the message has the cause."""

    hint = "run the command of the page in a shell: it tells its steps"


def report_needs() -> str:
    """Return how to install what reports need and is not there; "": all is there."""
    if all(importlib.util.find_spec(each) is not None for each in _PACKAGES):
        return ""
    return install_command("spark")


def report_command(
    cluster: ClusterClient, report: ReportKind, out: str | None, measured: str | None = None
) -> list[str]:
    """Return the arguments of ``vq`` that make a report; see ``run_report``."""
    config = cluster.config
    own = ["--zookeeper", config.zookeeper, "--cluster", config.cluster]
    kept = [] if out is None else ["--out", out]
    if measured is not None:
        kept += ["--history", measured]
    bounds = ["--top", str(_ROWS), "--master", _MASTER]
    return ["report", report.value, "--json", *bounds, *own, *kept]


async def run_report(
    cluster: ClusterClient,
    report: ReportKind,
    *,
    out: str | None = None,
    measured: str | None = None,
) -> dict[str, Any]:
    """Have ``vq report`` read the cluster, and return what it prints with ``--json``.

    Forecasts and trends rest on earlier ones in ``out``, a directory or URL, and those of a
    capacity report on ``measured``, a file of what the console has measured; None: there is none.

    One at a time is made of a cluster. Cancelling it ends the process, and Spark with it.

    Raises:
        InvalidState: Another one is made now.
        ReportFailed: It failed, took too long, or is too large.
    """
    if cluster in _BUSY:
        raise InvalidState("a report of this cluster is made now: wait for its end")
    _BUSY.add(cluster)
    try:
        return await _made(report_command(cluster, report, out, measured), report)
    finally:
        _BUSY.discard(cluster)


async def _made(arguments: list[str], report: ReportKind) -> dict[str, Any]:
    environ = {k: v for k, v in os.environ.items() if not k.startswith(_OWN_VARIABLES)}
    child = await asyncio.create_subprocess_exec(
        *PROGRAM,
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environ,
        start_new_session=True,  # so that Java ends with it
    )
    assert child.stdout is not None
    assert child.stderr is not None
    try:
        async with asyncio.timeout(REPORT_S_MAX):
            printed, said, _ = await asyncio.gather(
                _printed(child.stdout), _end_of(child.stderr), child.wait()
            )
    except TimeoutError:
        raise ReportFailed(
            f"the report took more than {REPORT_S_MAX:.0f} s and was ended: make it in a shell, "
            "where a cluster of Spark can share the work"
        ) from None
    finally:
        await _ended(child)
    try:
        found = json.loads(printed)
    except ValueError:
        found = None
    if not isinstance(found, dict) or "snapshot" not in found:
        raise ReportFailed(f"vq report {report} ended with code {child.returncode}: {_cause(said)}")
    return found


async def _printed(stream: asyncio.StreamReader) -> bytes:
    found = bytearray()
    while part := await stream.read(_CHUNK_BYTES):
        found += part
        if len(found) > REPORT_BYTES_MAX:
            raise ReportFailed(
                f"the report has more than {REPORT_BYTES_MAX} bytes: make it in a shell, with --out"
            )
    return bytes(found)


async def _end_of(stream: asyncio.StreamReader) -> str:
    """Return the end of what a stream says."""
    found = b""
    while part := await stream.read(_CHUNK_BYTES):
        found = (found + part)[-_SAID_BYTES:]
    return found.decode("utf-8", "replace")


async def _ended(child: asyncio.subprocess.Process) -> None:
    """End the process and those it has started, if any of them is still there."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    await asyncio.shield(child.wait())


def _cause(said: str) -> str:
    """Return the message of the error that a command has printed as JSON, or its last line."""
    lines = [each.strip() for each in said.splitlines() if each.strip()]
    for begin in range(len(lines)):
        with contextlib.suppress(ValueError):
            found = json.loads("\n".join(lines[begin:]))
            if isinstance(found, dict) and "message" in found:
                hint = f"; {found['hint']}" if found.get("hint") else ""
                return f"{found['message']}{hint}"
    return shown(lines[-1], 500) if lines else "it said nothing"
