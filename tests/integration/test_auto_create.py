"""Topics that producers create, with real ZooKeeper: one whole topic, none, or a clear error.

producers ──▶ ZooKeeper ◀── operators (delete, auto-create off)        one broker, a process
"""

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from support.chaos_proxy import DOWN, UP, ChaosProxy
from support.cluster import ProcessCluster, process_cluster
from support.threads import spawn
from support.zookeeper import ZooKeeperService

import vq
from vq.errors import CoordinationError, UnknownTopic
from vq.model import Address
from vq.testing.waiting import PROCESSES_WAIT_S

pytestmark = pytest.mark.slow
PARTITIONS = 40
_names = itertools.count()


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeperService
) -> Iterator[ProcessCluster]:
    with process_cluster(tmp_path_factory.mktemp("brokers"), zookeeper.hosts) as made:
        made.add("b1")
        yield made


@pytest.fixture
def factories(cluster: ProcessCluster) -> Iterator[list[vq.MessageFactory]]:
    """Three, each with a session of its own; the first one is the operator's."""
    with ExitStack() as stack:
        made = [stack.enter_context(open_factory(cluster)) for _ in range(3)]
        made[0].admin.set_auto_create(vq.TopicSettings(partitions=PARTITIONS))
        yield made


def open_factory(cluster: ProcessCluster, zookeeper: str = "") -> vq.MessageFactory:
    return vq.MessageFactory(
        vq.MessageFactoryConfig(zookeeper=zookeeper or cluster.zookeeper, cluster=cluster.name)
    ).open()


def whole(factory: vq.MessageFactory, topic: str) -> bool:
    """Return whether a topic exists, with all its partitions."""
    found = {each.name: each for each in factory.admin.list_topics()}
    if topic not in found:
        return False
    assert sum(found[topic].open.values()) == PARTITIONS
    assert len(factory.admin.placements(topic)) == PARTITIONS
    return True


def together(*calls: Callable[[], Any]) -> list[BaseException | None]:
    """Run calls at once; return how each ended."""
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], Any]) -> None:
        barrier.wait(PROCESSES_WAIT_S)
        call()

    running = [spawn(lambda call=call: run(call)) for call in calls]  # type: ignore[misc]
    return [each.exception(PROCESSES_WAIT_S) for each in running]


def test_producers_of_several_processes_get_one_topic(
    factories: list[vq.MessageFactory],
) -> None:
    producers = [each.create_producer() for each in factories for _ in range(2)]
    for _ in range(5):
        topic = f"race-{next(_names)}"
        ended = together(*(lambda p=p, t=topic: p.publish(t) for p in producers))  # type: ignore[misc]
        assert ended == [None] * len(producers)
        assert whole(factories[0], topic)


def test_a_topic_that_is_deleted_while_it_is_created_is_whole_or_gone(
    factories: list[vq.MessageFactory],
) -> None:
    """Whatever comes first: a message is stored or refused, and no half topic stays."""
    operator, topic = factories[0].admin, f"deleted-{next(_names)}"
    producers = [each.create_producer() for each in factories[1:]]
    message = vq.Message(topic, b"x")
    for _ in range(10):
        delete = lambda: operator.delete_topic(topic, now=True)  # noqa: E731
        sends = [lambda p=p: p.send_sync(message, 20) for p in producers]  # type: ignore[misc]
        errors = [error for error in together(delete, *sends) if error is not None]
        assert [e for e in errors if not isinstance(e, UnknownTopic | vq.OutcomeUnknown)] == []
        whole(factories[0], topic)
    producers[0].publish(topic)
    assert whole(factories[0], topic)


def test_no_topic_is_created_after_an_operator_has_forbidden_it(
    factories: list[vq.MessageFactory],
) -> None:
    operator = factories[0].admin
    producers = [each.create_producer() for each in factories[1:]]
    outcomes: Counter[type[BaseException] | None] = Counter()
    for _ in range(10):
        operator.set_auto_create(vq.TopicSettings(partitions=PARTITIONS))
        topic, listed = f"forbidden-{next(_names)}", list[str]()

        def forbid(listed: list[str] = listed) -> None:
            operator.set_auto_create(None)
            listed += [each.name for each in operator.list_topics()]

        publishes = [lambda p=p, t=topic: p.publish(t) for p in producers]  # type: ignore[misc]
        forbidden, *ended = together(forbid, *publishes)
        assert forbidden is None
        outcomes.update(None if each is None else type(each) for each in ended)
        assert (topic in listed) is whole(factories[0], topic)
    assert set(outcomes) <= {None, UnknownTopic}


@pytest.mark.parametrize(
    ("direction", "after"),
    [(UP, 40), (UP, 400), (UP, 3_000), (UP, 7_000), (DOWN, 40), (DOWN, 400), (DOWN, 1_200)],
)
def test_a_connection_that_is_lost_leaves_a_whole_topic_or_none(
    cluster: ProcessCluster,
    factories: list[vq.MessageFactory],
    direction: str,
    after: int,
) -> None:
    """It ends after so many bytes; the producer connects again and settles what was lost."""
    topic = f"cut-{next(_names)}"
    with (
        ChaosProxy(Address.parse(cluster.zookeeper)) as link,
        open_factory(cluster, str(link.address)) as factory,
    ):
        producer = factory.create_producer()
        producer.publish(f"before-{topic}")  # leases what a producer needs
        link.cut(direction, after)
        try:
            producer.publish(topic)
        except CoordinationError:
            whole(factories[0], topic)
        else:
            assert whole(factories[0], topic)
        assert link.wait_cuts(1)
        producer.publish(topic)
        assert whole(factories[0], topic)
