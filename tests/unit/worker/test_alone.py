"""The gate: many, or one alone."""

import threading

from vq.testing.waiting import block_until
from vq.worker.alone import AloneGate


def test_one_alone_waits_for_the_others_and_they_for_it() -> None:
    gate, order = AloneGate(), []
    inside, leave = threading.Event(), threading.Event()

    def alone() -> None:
        with gate.alone():
            order.append("alone")
            inside.set()
            leave.wait(20)

    def other() -> None:
        with gate.shared():
            order.append("other")

    with gate.shared(), gate.shared():
        first = threading.Thread(target=alone)
        first.start()
        block_until(lambda: gate.is_wanted_alone)
        second = threading.Thread(target=other)
        second.start()
        assert order == []
    assert inside.wait(20)
    assert order == ["alone"]
    leave.set()
    first.join()
    second.join()
    assert order == ["alone", "other"]
