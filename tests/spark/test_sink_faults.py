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
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType
from support.cluster import ProcessCluster
from support.waiting import block_until

import vq
from pyspark_vq import connection
from pyspark_vq.sink import batch_sink
from vq.errors import ProducerFenced

pytestmark = pytest.mark.slow

ROWS = 20_000
BATCH_ROWS = 1_000
SCHEMA = StructType([StructField("value", StringType()), StructField("key", LongType())])
_TASK = """
import pickle, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import test_sink_faults as made
sink = pickle.loads(Path(sys.argv[2]).read_bytes())
print(sink.write(made.batches(int(sys.argv[3]))), flush=True)
"""


def batches(seed: int, rows: int = ROWS) -> Iterator[pa.RecordBatch]:
    """Return the rows of the task, in an order that depends on the attempt."""
    numbers = list(range(rows))
    numbers = numbers[seed * 1_500 :] + numbers[: seed * 1_500]
    for begin in range(0, rows, BATCH_ROWS):
        part = numbers[begin : begin + BATCH_ROWS]
        values = pa.array([f"row {each}" for each in part])
        yield pa.record_batch([values, pa.array(part)], names=["value", "key"])


@pytest.fixture
def factory(processes: ProcessCluster) -> Iterator[vq.MessageFactory]:
    """A client of a group of two nodes, with the topic ``t`` of four partitions."""
    processes.add("b1")
    processes.add("b1", node="n2")
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
        assert ends is not None
        at = ends.earliest
        while at < ends.latest:
            part = factory.admin.read_range("t", partition, at, max_bytes=8 << 20)
            found.update(each.content for each in part.messages())
            at = part.next_offset
    return found
