"""No acknowledgement leaves a broker before the fdatasync that covers it (strace looks on).

    client ──▶ broker: read … pwritev … fdatasync … write ──▶ client

Goal: for every single reply, the order of the system calls proves it; a topic with asynchronous
flush is the control: there the same proof must fail.
"""

from pathlib import Path

import pytest
from support.ack_order import OPTIONS, Order, check_order, file_system_of
from support.cluster import ProcessCluster, process_cluster
from support.faults import Sender, client_of, judge_run, read_back, times
from support.judge import Fault
from support.small_disk import loop_disk_at
from support.strace import attached, need_strace, read_trace
from support.zookeeper import ZooKeeperService

import vq
from vq.limits import MIB

pytestmark = pytest.mark.slow


def trace_order(processes: ProcessCluster, tmp_path: Path, *topic: str, partitions: int) -> Order:
    """Send under strace; return what the trace says of every acknowledgement."""
    need_strace(attaching=True)
    broker = processes.add("b1")
    processes.vq_json("topic", "create", "t", "--partitions", str(partitions), *topic)
    config = vq.ProducerConfig(batch_records=5)
    with client_of(processes) as factory:
        with (
            attached(broker.pid, tmp_path / "trace", *OPTIONS),
            Sender(factory, "t", tmp_path / "h" / "s0.jsonl", rate=600, config=config) as first,
            Sender(factory, "t", tmp_path / "h" / "s1.jsonl", rate=600, config=config) as second,
        ):
            first.wait_sent(times(300, 10_000))
            first.finish()
            second.finish()
        log = read_back(factory, "t")
    order = check_order(read_trace(tmp_path / "trace"), broker.spec.data, broker.spec.address)
    print(order.acknowledged, "batches acknowledged; synced by", sorted(order.syncs))
    judge_run(tmp_path / "h", log, Fault("batch in the trace", order.acknowledged))
    return order


def test_no_acknowledgement_leaves_before_its_fdatasync(
    processes: ProcessCluster, tmp_path: Path
) -> None:
    """One partition: every flush is an fdatasync of its block."""
    order = trace_order(processes, tmp_path, partitions=1)
    assert order.acknowledged > 20
    assert order.syncs == {"fdatasync"}
    assert not order.early


def check_common_sync(order: Order, data: Path) -> None:
    """Many dirty partitions shared one sync of their file system, where that is worth anything."""
    assert order.acknowledged > 20
    kind = file_system_of(str(data))[1]
    print("data on", kind)
    assert order.syncs <= {"fdatasync", "syncfs"}
    assert ("syncfs" in order.syncs) == (kind in {"ext4", "xfs"})
    assert not order.early


def test_no_acknowledgement_leaves_before_the_common_sync_of_many_partitions(
    processes: ProcessCluster, tmp_path: Path
) -> None:
    """Wherever these tests run."""
    order = trace_order(processes, tmp_path, partitions=16)
    check_common_sync(order, processes.brokers["b1"].spec.data)


@pytest.mark.root
@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_no_acknowledgement_leaves_before_the_device_was_told_to_flush(
    zookeeper: ZooKeeperService, tmp_path: Path, kind: str
) -> None:
    """On XFS a sync of the file system alone is no proof."""
    with (
        loop_disk_at(tmp_path / kind, 320 * MIB, kind) as place,
        process_cluster(place, zookeeper.hosts) as processes,
    ):
        order = trace_order(processes, tmp_path, partitions=16)
        data = processes.brokers["b1"].spec.data
        assert file_system_of(str(data))[1] == kind
        check_common_sync(order, data)


def test_the_control_is_caught(processes: ProcessCluster, tmp_path: Path) -> None:
    """With asynchronous flush acknowledgements do leave first, and this proof sees it."""
    order = trace_order(processes, tmp_path, "--flush", "async", partitions=1)
    assert order.early
