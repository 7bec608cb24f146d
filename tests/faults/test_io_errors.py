"""The disk fails under a real broker: EIO on its k-th write or sync (injected by strace).

    client ──▶ broker: pwritev ✗, or fdatasync ✗, or rename ✗

Goal: the first error ends the partition's writing at once; whoever waits is told *unknown*, whoever
comes later is refused; nothing is synced again as if nothing had happened; other partitions go on;
a restart recovers from what the disk holds.
"""

from pathlib import Path

import pytest
from support.ack_order import OPTIONS, Order, check_order, file_system_of
from support.cluster import ProcessCluster
from support.faults import Sender, broker_settings, client_of, judge_run, make_rng, read_back, times
from support.judge import Fault
from support.strace import attached, need_strace, read_trace

import vq
from vq.errors import PartitionFailed
from vq.testing.waiting import PROCESSES_WAIT_S, block_until

pytestmark = pytest.mark.slow

#: The highest k worth trying: the first of a block's calls are others than those of its later life.
CALLS = {"fdatasync": 60, "pwritev2": 60, "fsync": 2, "fallocate": 1}
#: How writing an index and a checkpoint at the end of a block may fail: the call, the file (where
#: the call is made for others, too), and which of these calls.
SAVING = {
    "index renamed": ("rename", "", 1),
    "checkpoint renamed": ("rename", "", 2),
    "checkpoint synced": ("fdatasync", "checkpoint.tmp", 1),
    "index's name synced": ("fsync", ".", 2),  # the first is for the name of the new block
    "checkpoint's name synced": ("fsync", ".", 3),
}
BLOCK_BYTES = 8 << 20
BATCH = 32  # errors before the broker is started anew


def states(factory: vq.MessageFactory, topic: str) -> list[str]:
    """Return the state of every partition of a topic, as its broker says."""
    found = factory.get_status()
    assert isinstance(found, dict)
    (status,) = found.values()
    return [each["state"] for each in status.raw["partitions"] if each["topic"] == topic]


def break_partition(
    processes: ProcessCluster, factory: vq.MessageFactory, tmp_path: Path, topic: str, inject: str
) -> Order:
    """Send to a new topic until the injected error strikes; return what the trace says."""
    broker = processes.brokers["b1"]
    processes.vq_json("topic", "create", topic)
    block_until(lambda: len(states(factory, topic)) == 1, "the broker has the partition")
    config = vq.ProducerConfig(send_timeout_s=1.5, batch_records=20)
    trace = tmp_path / f"trace-{topic}"
    path = tmp_path / topic / "s0.jsonl"
    with (
        attached(broker.pid, trace, *OPTIONS, "-e", inject),
        Sender(factory, topic, path, config=config) as sender,
    ):
        block_until(lambda: "failed" in states(factory, topic), f"{topic} fails by {inject}")
        refused = sender.refused
        block_until(lambda: sender.refused > refused + 5, "later sends are refused")
        sender.finish()
    return check_order(read_trace(trace), broker.spec.data, broker.spec.address)


def test_the_first_io_error_ends_a_partition_and_loses_nothing(
    processes: ProcessCluster, tmp_path: Path
) -> None:
    """A topic for each error, while another one goes on; all come back with the next start."""
    need_strace(attaching=True)
    rng = make_rng()
    calls = list(CALLS)
    calls += rng.choices(calls, weights=[6, 6, 1, 1], k=times(0, 150 - len(calls)))
    broker = processes.add("b1")
    processes.vq_json("topic", "create", "bystander")
    with client_of(processes) as factory:
        bystander = factory.create_producer()
        certain = set()
        for first in range(0, len(calls), BATCH):
            topics = {f"t{n}": calls[n] for n in range(first, min(first + BATCH, len(calls)))}
            for topic, call in topics.items():
                when = rng.randint(1, CALLS[call])
                print(f"{topic}: {call} {when}")
                # Nothing was written, and no batch before it waits for its flush.
                if call == "fallocate" or (call, when) == ("pwritev2", 1):
                    certain.add(topic)
                inject = f"inject={call}:error=EIO:when={when}"
                order = break_partition(processes, factory, tmp_path, topic, inject)
                assert order.injected  # strace counts the calls of each thread
                assert not order.early
                assert not order.after_failure, "acknowledged after the error"
                assert not order.synced_again, "synced again after the error"
                assert bystander.send_sync(vq.Message("bystander", topic.encode())).offset > 0
                judge_topic(factory, tmp_path / topic, topic, certain=topic in certain)
            assert broker.stop() == 0
            processes.restart("b1")
            for topic in topics:
                with Sender(factory, topic, tmp_path / topic / "s1.jsonl") as sender:
                    sender.wait_sent(5)
                    sender.finish()
                assert set(states(factory, topic)) == {"rw"}
                judge_topic(factory, tmp_path / topic, topic, certain=topic in certain)


def test_an_error_of_the_whole_file_system_is_looked_for_in_every_log(
    processes: ProcessCluster, tmp_path: Path
) -> None:
    """It does not say which file it belongs to: each log is flushed by itself from then on."""
    need_strace(attaching=True)
    broker = processes.add("b1")
    if file_system_of(str(broker.spec.data))[1] not in {"ext4", "xfs"}:
        pytest.skip("no file system here is synced as a whole")
    partitions = 16
    processes.vq_json("topic", "create", "t", "--partitions", str(partitions))
    trace = tmp_path / "trace"
    inject = "inject=syncfs:error=EIO:when=2+"
    with client_of(processes) as factory:
        block_until(
            lambda: len(states(factory, "t")) == partitions, "the broker has the partitions"
        )
        with (
            attached(broker.pid, trace, *OPTIONS, "-e", inject),
            Sender(factory, "t", tmp_path / "h" / "s0.jsonl", rate=600) as sender,
        ):
            sender.wait_sent(3_000)
            sender.finish()
        assert set(states(factory, "t")) == {"rw"}
        log = read_back(factory, "t")
    order = check_order(read_trace(trace), broker.spec.data, broker.spec.address)
    judge_run(tmp_path / "h", log, Fault("syncfs that failed", order.injected))
    assert order.injected == 1, "syncfs was called again"
    assert not order.early


def judge_topic(factory: vq.MessageFactory, histories: Path, topic: str, *, certain: bool) -> None:
    """Judge what can be read of a topic now; ``certain``: no send has an unknown outcome."""
    text = (histories / "s0.jsonl").read_text()
    faults = [Fault("sends refused", text.count('"refused"'))]
    if not certain:
        faults.append(Fault("sends of unknown outcome", text.count('"unknown"')))
    judge_run(histories, read_back(factory, topic), *faults)


def send_blocks(
    producer: vq.MessageProducer, message: vq.Message, offsets: list[int]
) -> vq.VqError | None:
    """Send a few blocks full; note the offsets, return what ended it."""
    for _ in range(3 * BLOCK_BYTES // len(message.content)):
        try:
            result = producer.send_sync(message, timeout=PROCESSES_WAIT_S)
        except vq.VqError as error:
            return error
        offsets.append(result.offset)
    return None


def test_an_io_error_of_what_only_saves_work_ends_a_partition_too(
    processes: ProcessCluster, tmp_path: Path
) -> None:
    """Index and checkpoint could be made again; what the disk says after its error is no proof."""
    need_strace(attaching=True)
    settings = broker_settings(tmp_path / "b1.toml", block_bytes=BLOCK_BYTES)
    broker = processes.add("b1", *settings)
    content = bytes(1_000_000)
    with client_of(processes) as factory:
        producer = factory.create_producer()
        consumer = factory.create_consumer()
        stored: dict[str, list[int]] = {}
        for number, (what, (call, name, when)) in enumerate(SAVING.items()):
            topic = f"t{number}"
            processes.vq_json("topic", "create", topic)
            message = vq.Message(topic, content)
            sent = stored[topic] = [producer.send_sync(message, timeout=PROCESSES_WAIT_S).offset]
            only = ["-P", str(broker.spec.data / topic / "0" / name)] if name else []
            trace = tmp_path / f"trace-{topic}"
            inject = f"inject={call}:error=EIO:when={when}"
            with attached(broker.pid, trace, *only, "-etrace=" + call, "-e", inject):
                error = send_blocks(producer, message, sent)
                assert isinstance(error, vq.OutcomeUnknown), what
                with pytest.raises(PartitionFailed):
                    producer.send_sync(message)
                assert states(factory, topic) == ["failed"], what
            calls = [each for each in read_trace(trace) if each.name == call]
            calls = [each for each in calls if "/@" not in each.arguments]  # the node's own files
            assert calls[-1].injected, f"{what}: {call} after the error"
            assert sum(each.injected for each in calls) == 1
        assert broker.stop() == 0
        processes.restart("b1")
        for topic, sent in stored.items():
            assert (
                producer.send_sync(vq.Message(topic, b"on"), timeout=PROCESSES_WAIT_S).offset
                > sent[-1]
            )
            for offset in sent:
                assert consumer.get(topic, 0, offset, len(content) + 100)[0].offset == offset
