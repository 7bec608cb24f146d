"""A caller that commits its own message is interrupted (Ctrl-C) somewhere in that."""

from pathlib import Path

from support.interrupts import Interrupted, Interrupter

from vq.local import LocalQueue

INSIDE = ("vq/local/", "vq/store/log/", "vq/store/commit/")
#: Every so manieth place, for the time it takes; every one was tried once.
STEP = 3


def test_an_interrupted_put_loses_no_other_message(tmp_path: Path) -> None:
    """What returned is given once, what was interrupted at most once, and puts go on."""
    put, interrupted, place = list[bytes](), set[bytes](), 0
    with LocalQueue(tmp_path / "jobs") as queue:
        queue.put(b"warm")
        passed = 0
        while passed < 10:  # in turn; some are handed over to the thread, and have few places
            content = b"interrupted-%d" % place
            try:
                Interrupter(place, *INSIDE).run(lambda content=content: queue.put(content))  # type: ignore[misc]
            except Interrupted:
                interrupted.add(content)
                passed = 0
            else:
                put.append(content)
                passed += 1
            queue.put(b"next-%d" % place)
            put.append(b"next-%d" % place)
            place += STEP
        assert len(interrupted) > 100 // STEP, "callers do not commit their messages any more"
        found = []
        while (item := queue.take(0)) is not None:
            found.append(item.content)
    assert found[0] == b"warm"
    assert len(found) == len(set(found))
    assert [each for each in found[1:] if each not in interrupted] == put
    with LocalQueue(tmp_path / "jobs") as queue:
        assert [each.message.content for each in queue.list(10_000)] == found
