"""What is kept of a look at groups: unknown stays unknown, and topics know their readers."""

from vq.console.clusters.lags import TopicLag, readers_of, seen
from vq.operations.cluster.bulk import GroupContract
from vq.operations.groups.groups import GroupDescription, GroupProgress

NOW_MS = 1_800_000_000_000


def _group(*partitions: GroupProgress, name: str = "g") -> GroupDescription:
    topics = dict.fromkeys((each.topic for each in partitions), "")
    return GroupDescription(name, "clustering", "earliest", topics, (), (), partitions)


def _partition(topic: str, lag: int | None, number: int = 0) -> GroupProgress:
    lag_s = None if lag is None else float(lag)
    return GroupProgress(
        topic=topic, partition=number, committed=0, start=0, end=lag, lag_bytes=lag, lag_s=lag_s
    )


def test_lags_are_kept_by_topic() -> None:
    found = seen(_group(_partition("a", 5), _partition("a", 3, 1), _partition("b", None)), NOW_MS)
    assert found.topics == {"a": TopicLag(8, 5.0), "b": TopicLag(None, None)}
    assert found.lag_bytes is None
    assert found.time_ms == NOW_MS


def test_the_lag_of_a_group_that_was_not_seen_as_a_whole_is_unknown() -> None:
    found = seen(_group(_partition("a", 0)), NOW_MS, whole=False)
    assert (found.lag_bytes, found.lag_s, found.topics) == (None, None, {})
    assert found.verdict.verdict == "unknown"


def test_topics_know_their_readers_and_the_largest_lag_of_them() -> None:
    """The lag of a group whose turn has not come is unknown, and so is the largest one."""
    contracts = [
        GroupContract(group="h", topics={"a": "", "b": ""}),
        GroupContract(group="g", topics={"a": ""}),
        GroupContract(group="later", topics={"b": ""}),
    ]
    lags = {
        "g": seen(_group(_partition("a", 5)), NOW_MS),
        "h": seen(_group(_partition("a", 7), _partition("b", 1)), NOW_MS),
    }
    found = readers_of(contracts, lags)
    assert found["a"].groups == ("g", "h")
    assert found["a"].lag == TopicLag(7, 7.0)
    assert found["b"].lag == TopicLag(None, None)
