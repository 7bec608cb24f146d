"""A shared group beside a clustering one, over four partitions: what it costs, what workers bring.

Each listener takes 20 ms, as one does that asks another service. So a worker can do 50 messages a
second, and what a row is short of that is the cost of the group. The last rows have a listener that
does nothing: there the cost is all there is.
"""

import threading
import time
from typing import Any, Final, NamedTuple

import vq
from bench.cluster import Cluster
from bench.context import Context, Rounds
from bench.figures import Figure, Target
from bench.modes import receive
from vq.cli.bench.workload import Ready

PARTITIONS: Final = 4
HANDLER_S: Final = 0.02
CLUSTERING: Final = "clustering, 4 workers, 20 ms"
FOUR: Final = "shared, 4 workers, 20 ms"
MANY: Final = "shared, 32 workers, 20 ms"
BARE: Final = "clustering, 4 workers, nothing to do"
BARE_SHARED: Final = "shared, 4 workers, nothing to do"
TARGETS: Final = {FOUR: Target(ratio_min=0.7), MANY: Target(ratio_min=7.0)}


class SharedRow(NamedTuple):
    """What the consumer of one row is like.

    Attributes:
        settings: Of the consumer.
        handler_s: How long its listener takes.
        share: It gets so many of the messages that there are.
        baseline: The row that it is compared with.
    """

    settings: dict[str, Any]
    handler_s: float
    share: float
    baseline: str | None = None


_CONCURRENT: Final = {"mode": "concurrent", "workers": 4}
_SHARED: Final = {"model": "shared", "workers": 4}
ROWS: Final = {
    CLUSTERING: SharedRow(_CONCURRENT, HANDLER_S, 0.05),
    FOUR: SharedRow(_SHARED, HANDLER_S, 0.05, CLUSTERING),
    MANY: SharedRow({**_SHARED, "workers": 32}, HANDLER_S, 0.4, FOUR),
    BARE: SharedRow(_CONCURRENT, 0.0, 1.0),
    BARE_SHARED: SharedRow(_SHARED, 0.0, 1.0, BARE),
}


def shared(context: Context) -> Rounds:
    """Receive the same messages with one group after the other, all in turns."""
    count = context.pick(20_000, 2_000)
    with context.cluster() as cluster:
        topic = cluster.topic(PARTITIONS)
        cluster.run("send_keyed", topic=topic, count=count)
        _taken(cluster, topic, int(0.05 * count), ROWS[FOUR], "warm-up")
        for round_ in range(context.rounds):
            got = {
                name: _taken(cluster, topic, int(row.share * count), row, f"{round_}-{number}")
                for number, (name, row) in enumerate(ROWS.items())
            }
            figures = []
            for name, found in got.items():
                before = got.get(ROWS[name].baseline or "")
                rate = None if before is None else before.rate
                each_us = None if before is None else before.each_us
                figures.append(Figure(name, found.rate, "msg/s", rate))
                figures.append(Figure(f"{name}, processor", found.each_us, "µs", each_us))
            yield figures


class _Taken(NamedTuple):
    rate: float  # a second
    each_us: float  # processor time of the client for each message


def _taken(cluster: Cluster, topic: str, count: int, row: SharedRow, group: str) -> _Taken:
    got = cluster.run(
        "take_in",
        topic=topic,
        group=group,
        count=count,
        settings=row.settings,
        handler_s=row.handler_s,
    )
    messages = got["messages"]
    return _Taken(messages / got["seconds"], got["processor_s"] / messages * 1e6)


def take_in(
    ready: Ready,
    *,
    client: dict[str, Any],
    topic: str,
    group: str,
    count: int,
    settings: dict[str, Any],
    handler_s: float,
) -> dict[str, Any]:
    """Handle ``count`` messages as a group's only member, from the first one that is done on."""
    marks, ended = [(0.0, 0.0)] * 2, threading.Event()
    numbers = iter(range(count))  # one step for each message, whichever thread takes it

    def handle(message: vq.Message) -> None:
        if handler_s:
            time.sleep(handler_s)
        number = next(numbers, None)
        if number == 0:
            marks[0] = time.perf_counter(), time.process_time()
        elif number == count - 1:
            marks[1] = time.perf_counter(), time.process_time()
            ended.set()

    config = vq.ConsumerConfig(group=group, **settings)
    return receive(ready, client, config, topic, handle, count, marks, ended)


WORKS: Final = {take_in.__name__: take_in}
