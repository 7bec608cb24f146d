"""What each working mode of a consumer costs beside ``orderly``, and what failing keys cost others.

Messages of 128 bytes with 10,000 keys, in one partition. Each mode has a listener that does
nothing, so the processor time is the client's own. With failing keys, one key in a hundred fails at
each first try of a message, with a back-off of 1 s; the rate is that of the others. What the keys
that fail cost is shown once more for a listener that parses 1 KB of JSON for each message.
"""

import json
import threading
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import vq
from bench.cluster import Cluster
from bench.context import Context, Rounds
from bench.figures import Figure
from vq.cli.bench.workload import Outcomes, Ready, WorkFailed, contents

SIZE: Final = 128
KEYS: Final = 10_000
#: Of the keys, one in so many fails.
FAILING: Final = 100
BACKOFF_S: Final = 1.0
ORDERLY: Final = "orderly"
UNDISTURBED: Final = "keyed, 4 workers"
DISTURBED: Final = "keyed, 4 workers, 1 % of keys fail"
WORKING: Final = "keyed, 4 workers, a listener that parses JSON"
WORKING_DISTURBED: Final = "keyed, 4 workers, a listener that parses JSON, 1 % of keys fail"


class Mode(NamedTuple):
    """What the consumer of one row is like.

    Attributes:
        settings: Of the consumer.
        fails: Some of the keys fail.
        works: The listener has something to do.
        baseline: The row that it is compared with.
    """

    settings: dict[str, Any]
    fails: bool = False
    works: bool = False
    baseline: str = ORDERLY


_FOUR_KEYED: Final = {"mode": "keyed", "workers": 4}
ROWS: Final = {
    ORDERLY: Mode({}),
    "concurrent, 1 worker": Mode({"mode": "concurrent"}),
    "concurrent, 4 workers": Mode({"mode": "concurrent", "workers": 4}),
    "concurrent, lists of 100": Mode({"mode": "concurrent", "batch_size": 100}),
    "keyed, 1 worker": Mode({"mode": "keyed"}),
    UNDISTURBED: Mode(_FOUR_KEYED),
    DISTURBED: Mode(_FOUR_KEYED, fails=True, baseline=UNDISTURBED),
    WORKING: Mode(_FOUR_KEYED, works=True),
    WORKING_DISTURBED: Mode(_FOUR_KEYED, fails=True, works=True, baseline=WORKING),
}
_DOCUMENT: Final = json.dumps(
    {
        "order": 1_234_567,
        "customer": {"name": "A. Customer", "street": "Long Street 12", "city": "Hangzhou"},
        "lines": [{"article": f"a-{each}", "count": each, "price": 1.25} for each in range(18)],
    }
)
_WAIT_S: Final = 600.0


def modes(context: Context) -> Rounds:
    """Receive the same messages in one mode after the other."""
    count = context.pick(400_000, 20_000)
    with context.cluster() as cluster:
        topic = cluster.topic()
        cluster.run("send_keyed", topic=topic, count=count)
        _received(cluster, topic, count, ORDERLY, "warm-up")
        for round_ in range(context.rounds):
            got = {
                row: _received(cluster, topic, count, row, f"{round_}-{number}")
                for number, row in enumerate(ROWS)
            }
            beside = {name: got[row.baseline] for name, row in ROWS.items()}
            yield [
                Figure(row, found.rate, "msg/s", beside[row].rate) for row, found in got.items()
            ] + [
                Figure(f"{row}, processor", found.each_us, "µs", beside[row].each_us)
                for row, found in got.items()
            ]


class _Received(NamedTuple):
    rate: float  # a second
    each_us: float  # processor time of the client for each message


def _received(cluster: Cluster, topic: str, count: int, name: str, group: str) -> _Received:
    row = ROWS[name]
    got = cluster.run(
        "consume_in",
        topic=topic,
        group=group,
        count=count,
        settings=row.settings,
        fails=row.fails,
        works=row.works,
    )
    messages = got["messages"]
    return _Received(messages / got["seconds"], got["processor_s"] / messages * 1e6)


def send_keyed(ready: Ready, *, client: dict[str, Any], topic: str, count: int) -> dict[str, Any]:
    """Send ``count`` messages whose keys take turns."""
    outcomes = Outcomes()
    config = vq.MessageFactoryConfig(**client)
    with vq.MessageFactory(config) as factory, factory.create_producer() as producer:
        ready()
        for number, each in enumerate(contents(0, 0, count, SIZE)):
            producer.send_async(vq.Message(topic, each, key=number % KEYS), outcomes)
        producer.flush()
    outcomes.check(count)
    return {"messages": count}


def consume_in(
    ready: Ready,
    *,
    client: dict[str, Any],
    topic: str,
    group: str,
    count: int,
    settings: dict[str, Any],
    fails: bool,
    works: bool,
) -> dict[str, Any]:
    """Receive all messages of keys that do not fail, as a group's only member.

    The window holds what arrives during a back-off: it is no part of what is measured.
    """
    left = sum(1 for number in range(count) if not fails or number % KEYS % FAILING)
    expected, marks, ended = left, [(0.0, 0.0)] * 2, threading.Event()
    numbers = iter(range(left))  # one step for each message, whichever thread takes it
    last = left - 1

    def one(message: vq.Message) -> None:
        if fails and not message.key % FAILING:  # type: ignore[operator]  # all keys are integers
            if message.attempts == 1:
                raise vq.InvalidState("not at the first try")
            return
        if works:
            json.loads(_DOCUMENT)
        number = next(numbers)
        if not number:
            marks[0] = time.perf_counter(), time.process_time()
        elif number == last:
            marks[1] = time.perf_counter(), time.process_time()
            ended.set()

    def many(messages: list[vq.Message]) -> None:
        for message in messages:
            one(message)

    config = vq.ConsumerConfig(
        group=group,
        window_messages=count,
        window_bytes=2 * count * SIZE,
        retry_backoff=(BACKOFF_S, BACKOFF_S),
        **settings,
    )
    listener = one if config.batch_size == 1 else many
    return receive(ready, client, config, topic, listener, expected, marks, ended)


def receive(
    ready: Ready,
    client: dict[str, Any],
    config: vq.ConsumerConfig,
    topic: str,
    listener: vq.Listener,
    expected: int,
    marks: Sequence[tuple[float, float]],
    ended: threading.Event,
) -> dict[str, Any]:
    """Have a consumer call ``listener`` until it sets ``ended``; return what passed meanwhile.

    Args:
        ready, client: Of the work.
        config, topic, listener: Of the consumer.
        expected: How many messages the listener counts.
        marks: The clock and the processor time of this process, in seconds, which it notes at the
            first and at the last of them.
        ended: It sets this at the last one.

    Raises:
        WorkFailed: It did not within ``_WAIT_S``.
    """
    with vq.MessageFactory(vq.MessageFactoryConfig(**client)) as factory:
        consumer = factory.create_consumer(config)
        consumer.subscribe(topic, 1 << 20, listener)
        ready()
        consumer.start()
        if not ended.wait(_WAIT_S):
            raise WorkFailed(f"not all of {expected} messages arrived in time")
    (began, began_cpu), (end, end_cpu) = marks
    return {
        "messages": expected - 1,
        "seconds": max(end - began, 1e-9),
        "processor_s": end_cpu - began_cpu,
    }


WORKS: Final = {each.__name__: each for each in (send_keyed, consume_in)}
