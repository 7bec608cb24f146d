"""Tasks of the sink that are killed, fenced and tried again: each row is stored once.

The tasks run as Spark runs them, without Spark: a pickled sink in processes of their own.
"""

import pickle
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType
from support.cluster import ProcessCluster

import vq
from pyspark_vq import connection
from pyspark_vq import sink as module
from pyspark_vq.sink import BATCH_ID, QUERY_ID, RUN_ID, batch_sink, stream_sink
from vq.devtools.processes import BrokerChild
from vq.errors import ProducerFenced
from vq.testing.waiting import block_until

pytestmark = pytest.mark.slow

ROWS = 20_000
BATCH_ROWS = 1_000
#: By so many the order of an attempt differs from the one before.
MOVED_ROWS = 1_500
SCHEMA = StructType([StructField("value", StringType()), StructField("key", LongType())])
_TASK = """
import pickle, sys
from pathlib import Path
sys.path[:0] = [sys.argv[1], str(Path(sys.argv[1]).parent)]
import test_sink_faults as made
sink = pickle.loads(Path(sys.argv[2]).read_bytes())
print(sink.write(made.attempt(int(sys.argv[3]))), flush=True)
"""


def batches(seed: int, rows: int = ROWS) -> Iterator[pa.RecordBatch]:
    """Return the rows of the task, in an order that depends on the attempt."""
    numbers = list(range(rows))
    numbers = numbers[seed * MOVED_ROWS :] + numbers[: seed * MOVED_ROWS]
    for begin in range(0, rows, BATCH_ROWS):
        part = numbers[begin : begin + BATCH_ROWS]
        values = pa.array([f"row {each}" for each in part])
        yield pa.record_batch([values, pa.array(part)], names=["value", "key"])


def attempt(seed: int) -> Iterator[pa.RecordBatch]:
    """Return the rows of an attempt; the first three of them come to no end."""
    for number, batch in enumerate(batches(seed)):
        if seed < 3 and number == 6:
            threading.Event().wait()
        yield batch


@pytest.fixture
def factory(processes: ProcessCluster) -> Iterator[vq.MessageFactory]:
    """A client of a cluster of one broker, with the topic ``t`` of four partitions."""
    processes.add("b1")
    config = vq.MessageFactoryConfig(zookeeper=processes.zookeeper, cluster=processes.name)
    with vq.MessageFactory(config) as made:
        made.admin.create_topic("t", vq.TopicSettings(partitions=4))
        yield made
    connection.close_all()


def options_of(processes: ProcessCluster, **more: str) -> dict[str, str]:
    return {
        "zookeeper": processes.zookeeper,
        "cluster": processes.name,
        "topic": "t",
        **more,
    }


def stored(factory: vq.MessageFactory) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    for partition, ends in factory.admin.bounds("t").items():
        at = 0
        while ends is not None and at < ends.latest:
            part = factory.admin.read_range("t", partition, at, max_bytes=8 << 20)
            found.update(each.content for each in part.messages())
            at = part.next_offset
    return found


def pickled(processes: ProcessCluster, path: Path, name: str) -> Path:
    """Write the sink of a batch that is repeated by name, as Spark sends it to tasks."""
    options = options_of(processes, writeId=name)
    path.write_bytes(pickle.dumps(batch_sink(options, SCHEMA, overwrite=False)))
    return path


class Task:
    """An attempt of the task, in a process of its own."""

    def __init__(self, sink: Path, seed: int) -> None:
        command = [sys.executable, "-c", _TASK, str(Path(__file__).parent), str(sink), str(seed)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def ended(self) -> bool:
        """Return False: it must not end."""
        if self.process.poll() is not None:
            pytest.fail(self.process.communicate()[1].decode())
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Kill it if it has not ended."""
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()


def test_workers_and_masters_that_are_killed_cost_no_row_and_no_second_copy(
    processes: ProcessCluster, factory: vq.MessageFactory, tmp_path: Path
) -> None:
    """Kill -9 of the worker in the middle, of the master, of the worker again; then it ends.

    Each attempt has the rows in another order. All but the last are killed when they have stored
    some, whatever has been acknowledged by then.
    """
    spec = replace(processes.spec("b1", node="n2"), data=processes.directory / "b1-n2")
    processes.run(BrokerChild(spec), name="b1-n2")
    status = factory.admin.cluster_status
    block_until(lambda: [each.in_sync for each in status().brokers] == [True, True])
    sink = pickled(processes, tmp_path / "sink", "w")

    for seed in range(3):
        with Task(sink, seed) as task:
            least = 3 * BATCH_ROWS + seed * MOVED_ROWS
            block_until(lambda least=least: task.ended() or len(stored(factory)) >= least)
            if seed == 1:
                processes.brokers["b1"].kill()
    last = pickle.loads(sink.read_bytes())
    done = last.write(attempt(3))
    assert (done.rows, done.is_repeated) == (ROWS, True)
    assert 3 * BATCH_ROWS <= done.repeated < ROWS
    assert stored(factory) == Counter(f"row {each}".encode() for each in range(ROWS))
    assert last.write(attempt(4)).repeated == ROWS  # a job that is run again stores nothing
    assert sum(stored(factory).values()) == ROWS


def test_a_zombie_stores_nothing_once_its_task_is_tried_again(
    processes: ProcessCluster, factory: vq.MessageFactory
) -> None:
    """Two attempts at the same time, as with speculation: the later one has all rows stored."""
    sink: Any = batch_sink(options_of(processes), SCHEMA, overwrite=False)
    go_on = threading.Event()
    failed: list[BaseException] = []

    def with_pause() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches(0)):
            if number == 10:
                assert go_on.wait(120)
            yield batch

    def zombie() -> None:
        try:
            sink.write(with_pause())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=zombie)
    thread.start()
    block_until(lambda: len(stored(factory)) == 10 * BATCH_ROWS, "the zombie does not begin")
    done = sink.write(batches(1))
    assert (done.rows, done.repeated, done.is_repeated) == (ROWS, 10 * BATCH_ROWS, True)
    go_on.set()
    thread.join(120)
    assert [type(each) for each in failed] == [ProducerFenced]
    assert stored(factory) == Counter(f"row {each}".encode() for each in range(ROWS))
    sink.commit([done])
    assert factory.admin.list_writes() == []
    with pytest.raises(vq.InvalidState, match="has ended, or was never begun"):
        sink.write(batches(0))
    assert sum(stored(factory).values()) == ROWS


def test_other_rows_are_refused_and_told(
    processes: ProcessCluster, factory: vq.MessageFactory
) -> None:
    """A task that is repeated without some of its rows, or of which none are left."""
    options = options_of(processes, writeId="w", batchId="3")
    sink: Any = batch_sink(options, SCHEMA, overwrite=False)
    assert sink.write(batches(0, 3 * BATCH_ROWS)).rows == 3 * BATCH_ROWS
    with pytest.raises(vq.InvalidState, match="1000 messages that an earlier attempt of task 0"):
        sink.write(batches(0, 2 * BATCH_ROWS))
    done = sink.write(batches(0, 3 * BATCH_ROWS))
    sink.commit([done])
    none = sink.write(iter(()))
    assert none.rows == 0
    with pytest.raises(vq.InvalidState, match=r"tasks \[0\] had rows before"):
        sink.commit([none])
    older: Any = batch_sink({**options, "batchId": "2"}, SCHEMA, overwrite=False)
    with pytest.raises(vq.InvalidState, match="batch 3 has begun, so batch 2 is over"):
        older.write(batches(0))
    anyway: Any = batch_sink(options_of(processes, idempotent="false"), SCHEMA, overwrite=False)
    assert anyway.write(batches(0, BATCH_ROWS)).rows == BATCH_ROWS
    assert sum(stored(factory).values()) == 4 * BATCH_ROWS


class Context:
    """What a task of a stream knows of itself."""

    def __init__(self, task: int, batch: int, run: str) -> None:
        self._task = task
        self._properties = {QUERY_ID: "q", BATCH_ID: str(batch), RUN_ID: run}

    def get(self) -> Self:
        return self

    def partitionId(self) -> int:
        return self._task

    def getLocalProperty(self, name: str) -> str:
        return self._properties[name]


def test_a_replay_with_other_tasks_is_told_to_the_driver(
    processes: ProcessCluster, factory: vq.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if none of the tasks that there are now was there before.

    Later micro-batches of a run are not checked: that would cost each a session with ZooKeeper.
    """
    sink: Any = stream_sink(options_of(processes), SCHEMA, overwrite=False)

    def write(task: int, batch: int, run: str) -> Any:
        monkeypatch.setattr(module, "TaskContext", Context(task, batch, run))
        return sink.write(batches(0, BATCH_ROWS))

    write(1, 4, "run-1")  # the query ends before task 0 begins
    done = write(0, 4, "run-2")
    assert (done.is_first, done.is_repeated) == (True, False)
    with pytest.raises(vq.InvalidState, match=r"tasks \[1\] had rows before and have none now"):
        sink.commit([done], 4)
    done = write(0, 5, "run-2")
    assert not done.is_first
    sink.commit([done], 5)
    sink.commit([write(0, 6, "run-3")], 6)
    assert factory.admin.list_writes() == ["spark-stream-q"]
