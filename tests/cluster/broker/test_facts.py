"""What a node tells of itself: one table of facts; STATUS, metrics and load are views of it."""

from collections import Counter
from dataclasses import fields
from typing import Any

import pytest
from support.broker import memory_cluster

from vq.broker.base.facts import FactKind
from vq.coordination.tree.values.brokers import BrokerLoad
from vq.remoting import wire_pb2 as wire

pytestmark = pytest.mark.virtual_time

#: Fields of STATUS that are no facts: what is wrong with a node is judged of several parts, and
#: partitions are told as far as they fit.
BESIDE = {"problems", "partitions", "more", "security"}
#: Fields of the load that are measured by whoever publishes it.
MEASURED = {
    "time_ms",
    "messages_per_s",
    "bytes_per_s",
    "busy",
    "capacity_bytes_per_s",
    "queue_depth",
    "flush_ms",
}


@pytest.fixture
async def parts():
    async with memory_cluster() as cluster:
        node = await cluster.start()
        yield node.parts


async def test_every_field_of_status_is_told_by_one_fact(parts) -> None:
    told = Counter(
        (facts.status, name)
        for facts in parts.facts
        for name in (
            *(fact.status for fact in facts.facts if fact.status),
            *(facts.labels if facts.status else ()),
        )
    )
    status = wire.StatusResponse.DESCRIPTOR
    wanted = []
    for field in status.fields:
        if field.name in BESIDE:
            continue
        if field.message_type is None:
            wanted.append(("", field.name))
        else:
            wanted += [(field.name, each.name) for each in field.message_type.fields]
    assert told == Counter(wanted)


async def test_every_field_of_the_load_is_measured_or_told_by_one_fact(parts) -> None:
    told = [(facts, fact.load) for facts in parts.facts for fact in facts.facts if fact.load]
    assert not [name for facts, name in told if facts.labels]
    names = {field.name for field in fields(BrokerLoad)}
    assert Counter(name for _, name in told) == Counter(names - MEASURED)


async def test_a_metric_has_one_name_a_meaning_and_its_unit(parts) -> None:
    metrics = [fact for facts in parts.facts for fact in facts.facts if fact.metric]
    assert [
        name for name, times in Counter(each.metric for each in metrics).items() if times > 1
    ] == []
    for fact in metrics:
        assert fact.meaning.endswith("."), fact.metric
        assert (fact.kind is FactKind.HISTOGRAM) <= fact.metric.endswith("_seconds")
        if fact.ms:
            assert fact.metric.endswith("_seconds")
        if fact.status:
            assert fact.ms == ("ms" in fact.status.split("_")), fact.metric


async def test_every_part_that_knows_facts_is_in_the_table(parts) -> None:
    """By what they are named, which tells them apart: a part makes them anew when it is asked."""

    def names(found: Any) -> set[tuple[str, str, str]]:
        return {(fact.metric, fact.status, fact.load) for each in found for fact in each.facts}

    known = names(parts.facts)
    offering = [each for each in vars(parts).values() if callable(getattr(each, "facts", None))]
    assert len(offering) >= 7
    for part in offering:
        assert names(part.facts()) <= known, part


async def test_status_and_metrics_agree(parts) -> None:
    status = parts.status.report(wire.StatusRequest(with_partitions=True))
    found = {
        sample.name: sample.value
        for family in await parts.monitor.families()
        for sample in family.samples
        if set(sample.labels) <= {"directory"}
    }
    (disk,) = status.disks
    assert disk.bytes_total == status.disk_bytes_total == found["vq_disk_size_bytes"] > 0
    assert status.epoch == found["vq_epoch"] == 1
    assert status.connections == found["vq_connections"]
    assert status.master is bool(found["vq_leader_may_act"]) is True
    assert {each.name for each in status.jobs} >= {"load", "scrub", "disk /data"}
    assert disk.level == "ok"
    assert "vq_disk_growth_bytes_per_second" not in found
    assert not disk.growth_known
