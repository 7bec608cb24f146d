"""What another process uses (Linux)."""

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def processor_s(pid: int) -> float:
    """Return the seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory_of(pid: int) -> dict[str, float]:
    """Return the resident memory of a process in MB, all of it and without file pages."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = dict(line.split(":", 1) for line in lines if line.startswith(("VmRSS", "RssAnon")))
    return {name: int(value.split()[0]) * 1024 / 1e6 for name, value in found.items()}
