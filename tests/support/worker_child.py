"""A process of a worker without a cluster, for tests of its parent: files say how it behaves.

    refuse, fail   it tells so and ends
    hold           it has a message in hand, from its start on
    late           it does not join its group
    hang           it takes no order to stop
    die            it ends by itself when it is ready
    babble         it tells lines that nobody can read, before all else
    finish         it has nothing in hand any more when it is told to stop

Each process appends lines to ``log``: ``start``, ``suspects`` and ``stop`` with what it was told.
"""

import json
import os
import sys
import time
from pathlib import Path

from vq.model import Message
from vq.worker.config import CHILD_VARIABLE
from vq.worker.in_hand import Slots


def main(directory: Path) -> int:
    """Behave as the files say."""
    number, memory, events = map(int, os.environ[CHILD_VARIABLE].split(","))
    has = {each.name for each in directory.iterdir()}

    def note(*words: object) -> None:
        with (directory / "log").open("a") as log:
            log.write(" ".join(map(str, (number, os.getpid(), *words))) + "\n")

    def tell(**event: object) -> None:
        os.write(events, json.dumps(event).encode() + b"\n")

    note("start")
    for name, event in (("refuse", "refused"), ("fail", "failed")):
        if name in has:
            tell(event=event, error=f"it is to {name}")
            return 2 if name == "refuse" else 1
    if "babble" in has:
        os.write(events, b"x" * (3 << 20) + b"\n{}\n[1]\n\n")
    slots = Slots(memory, 4)
    if "hold" in has:
        slots.begin(Message("t", b"x", partition=1, offset=5, id=6))
        slots.begin(Message("t", b"x", partition=1, offset=5, id=6))
        note("holds")
    if "late" not in has:
        tell(event="ready")
    if "die" in has:
        time.sleep(0.2)
        os._exit(7)
    rest = b""
    while data := os.read(0, 65_536):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            told = json.loads(line)
            if told.get("suspects"):
                note("suspects", *(each[-1] for each in told["suspects"]))
            if "stop" in told:
                note("stop", told["stop"])
                if "finish" in has:
                    slots.end(failed=False)
                if "hang" not in has:
                    return 0 if told["stop"] == "finish" else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
