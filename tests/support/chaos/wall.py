"""Wall clocks of brokers that can be set: each process reads its time from a file (libfaketime)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

#: How long a process may go by a time that it has read before.
_CACHED_S: Final = 1


def _library() -> Path | None:
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    return found[0] if found else None


def why_not() -> str:
    """Return why clocks cannot be set here, "" if they can."""
    return "" if _library() else "not installed: libfaketime; apt-get install faketime"


def enter(data: Path) -> Sequence[str]:
    """Return the command in front of a broker whose clock ``set_wall`` sets; it is right first."""
    set_wall(data)
    values = {
        "LD_PRELOAD": _library(),
        "FAKETIME_TIMESTAMP_FILE": _file(data),
        "FAKETIME_CACHE_DURATION": _CACHED_S,
        "FAKETIME_DONT_FAKE_MONOTONIC": 1,
        "NO_FAKE_STAT": 1,
    }
    return ("env", *(f"{name}={value}" for name, value in values.items()))


def set_wall(data: Path, ahead_s: int = 0, *, speed: int = 1) -> None:
    """Set the clock of the broker with this data directory, and how fast it runs from now on."""
    path = _file(data)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(f"{ahead_s:+d} x{speed}\n")
    new.replace(path)


def _file(data: Path) -> Path:
    return data.with_name(data.name + ".faketime")
