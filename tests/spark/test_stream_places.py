"""Where a stream goes on, without Spark: what ZooKeeper and brokers say comes from a double."""

import json
import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes

from pyspark_vq import stream
from pyspark_vq.columns import SCHEMA
from pyspark_vq.options import ReadOptions
from pyspark_vq.positions import Positions, TopicPositions
from pyspark_vq.reader import DataLost
from pyspark_vq.source import VqSource
from pyspark_vq.stream import StreamReader
from vq import TopicSettings
from vq.admin import PartitionEnds
from vq.errors import (
    CoordinationError,
    InvalidArgument,
    InvalidState,
    NotMaster,
    PermissionRefused,
    UnknownTopic,
    VqError,
)

MIB = 1 << 20


class Admin:
    """Topics by name, with an id and where each partition ends; errors to raise by method."""

    def __init__(self, **topics: tuple[str, tuple[int, ...]]) -> None:
        self.topics = topics
        self.errors: dict[str, VqError] = {}
        self.silent: set[int] = set()
        self.earliest = 0
        self.unreadable: dict[str, VqError] = {}
        self.deleted: dict[str, str] = {}
        self.unreadable_by_setting: set[str] = set()

    def _maybe_fail(self, method: str) -> None:
        if method in self.errors:
            raise self.errors[method]

    def readable_topics(self) -> tuple[list[SimpleNamespace], dict[str, VqError]]:
        self._maybe_fail("readable_topics")
        return [SimpleNamespace(name=name) for name in self.topics], self.unreadable

    def deleted_topics(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(name=name, id=id) for name, id in self.deleted.items()]

    def get_topic(self, name: str) -> SimpleNamespace:
        self._maybe_fail("get_topic")
        if name not in self.topics:
            raise UnknownTopic(f"there is no topic {name!r}")
        settings = TopicSettings(readable=name not in self.unreadable_by_setting)
        return SimpleNamespace(name=name, id=self.topics[name][0], settings=settings)

    def bounds(self, topic: SimpleNamespace | str) -> dict[int, PartitionEnds | None]:
        name = topic if isinstance(topic, str) else topic.name
        ends = enumerate(self.topics[name][1])
        return {
            n: None if n in self.silent else PartitionEnds(self.earliest, end, end)
            for n, end in ends
        }

    def boundaries(self, topic: str, wanted: Mapping[int, int]) -> dict[int, int]:
        self._maybe_fail("boundaries")
        return dict(wanted)


def reader_of(admin: Admin, monkeypatch: pytest.MonkeyPatch, **options: str) -> StreamReader:
    monkeypatch.setattr(stream, "factory_of", lambda _: SimpleNamespace(admin=admin))
    return StreamReader(ReadOptions.parsed(options, stream=True), SCHEMA)


def at(*places: int, id: str = "i") -> dict[str, Any]:
    return Positions({"t": TopicPositions(id, places)}).encode()


ALL: ReadLimit = ReadAllAvailable()


def test_a_new_topic_of_the_name_is_not_entered_in_the_middle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The place that was read up to is one of the old topic, also while a broker is silent."""
    admin = Admin(t=("j", (9 * MIB, 9 * MIB)))
    reader = reader_of(admin, monkeypatch, topics="t", failOnDataLoss="false")
    begin, limit = at(5 * MIB, 6 * MIB), ReadMaxBytes(2 * MIB)
    joining = {"from": at(0, 0, id="j")["topics"]}
    assert reader.latestOffset(begin, limit) == {**at(MIB, MIB, id="j"), **joining}
    admin.errors["boundaries"] = NotMaster("the broker is silent")
    assert reader.latestOffset(begin, limit) == {**at(0, 0, id="j"), **joining}
    assert reader.latestOffset(at(MIB, 2 * MIB, id="j"), limit) == at(MIB, 2 * MIB, id="j")


def test_the_last_topic_of_a_pattern_may_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a loss as any other, not a pattern that is wrong."""
    admin = Admin(t=("i", (7,)))
    reader = reader_of(admin, monkeypatch, topicPattern="t.*", failOnDataLoss="false")
    strict = reader_of(admin, monkeypatch, topicPattern="t.*")
    admin.topics = {}
    assert reader.latestOffset(at(7), ALL) == at(7)
    with pytest.raises(DataLost, match="topic 't' was deleted"):
        strict.latestOffset(at(7), ALL)
    with pytest.raises(InvalidArgument, match="no topic has a name like"):
        strict.initialOffset()
    admin.topics = {"t": ("j", (3,))}
    assert reader.latestOffset(at(7), ALL) == {
        **at(3, id="j"),
        "from": at(0, id="j")["topics"],
    }


@pytest.mark.parametrize(
    ("starting", "begin"),
    [(None, 2), ("earliest", 2), ("latest", 9), ('{"u": {"0": 5}}', 5)],
)
def test_a_topic_that_joins_begins_by_the_option_and_loses_nothing(
    starting: str | None, begin: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it with what is there; retention has deleted what was before."""
    admin = Admin(t=("i", (7,)), u=("k", (9,)))
    options = {"topics": "t,u"} | ({} if starting is None else {"startingOffsets": starting})
    reader = reader_of(admin, monkeypatch, **options)
    admin.earliest = 2
    end = reader.latestOffset(at(7), ALL)
    assert end["topics"]["u"] == {"id": "k", "at": [9]}
    ranges = [each.range for each in reader.partitions(at(7), json.loads(json.dumps(end)))]  # type: ignore[attr-defined]
    assert [(each.topic, each.start, each.end) for each in ranges] == (
        [("u", begin, 9)] if begin < 9 else []
    )
    assert "from" not in reader.latestOffset({k: v for k, v in end.items() if k != "from"}, ALL)


def test_a_topic_that_is_not_readable_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not as brokers that do not answer, after the whole time-out."""
    admin = Admin(t=("i", (7,)))
    admin.unreadable_by_setting = {"t"}
    reader = reader_of(admin, monkeypatch, topics="t", timeout="3600")
    with pytest.raises(PermissionRefused, match="topic 't' is not readable"):
        reader.initialOffset()


def test_streams_on_an_older_spark_say_which_one_they_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark_vq.stream", None)
    with pytest.raises(InvalidState, match=r"need Spark 4\.2 or later; this is "):
        VqSource({"topics": "t"}).streamReader(SCHEMA)


def test_a_topic_joins_only_when_all_its_brokers_tell_where_it_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    admin = Admin(t=("i", (7,)), u=("k", (9, 9)))
    reader = reader_of(admin, monkeypatch, topics="t,u")
    admin.silent = {1}
    assert reader.latestOffset(at(7), ALL) == at(7)
    admin.silent = set()
    assert reader.latestOffset(at(7), ALL)["from"] == {"u": {"id": "k", "at": [0, 0]}}


def test_a_topic_that_leaves_the_query_is_dropped_and_no_loss(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    admin = Admin(t=("i", (7,)), u=("k", (9,)))
    reader = reader_of(admin, monkeypatch, topics="u")
    begin = {"v": 1, "topics": {**at(7)["topics"], "u": {"id": "k", "at": [9]}}}
    assert reader.latestOffset(begin, ALL) == {"v": 1, "topics": {"u": {"id": "k", "at": [9]}}}
    assert "topic 't' is not among the query's topics any more" in caplog.text


def test_a_topic_that_can_be_brought_back_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its messages are there; once its time is up they are lost."""
    admin = Admin()
    reader = reader_of(admin, monkeypatch, topics="t")
    admin.deleted = {"t": "i"}
    assert reader.latestOffset(at(7), ALL) == at(7)
    assert "topic 't' is deleted and can be brought back" in caplog.text
    admin.topics, admin.deleted = {"t": ("i", (9,))}, {}
    assert reader.latestOffset(at(7), ALL) == at(9)
    admin.topics = {}
    with pytest.raises(DataLost, match="topic 't' was deleted"):
        reader.latestOffset(at(9), ALL)


def test_a_topic_that_cannot_be_read_in_zookeeper_was_not_deleted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A query that runs waits for it; one that begins would lack its messages, and fails."""
    admin = Admin(u=("k", (9,)))
    admin.unreadable = {"t": CoordinationError("znode 'topics/t' has '{'")}
    reader = reader_of(admin, monkeypatch, topicPattern="[tu]")
    begin = {"v": 1, "topics": {**at(7)["topics"], "u": {"id": "k", "at": [5]}}}
    found = reader.latestOffset(begin, ALL)
    assert found["topics"] == {**at(7)["topics"], "u": {"id": "k", "at": [9]}}
    assert "topic 't' cannot be read in ZooKeeper: znode 'topics/t' has '{'" in caplog.text
    with pytest.raises(CoordinationError, match=r"takes topic 't'.*failOnDataLoss=false"):
        reader.initialOffset()
    lax = reader_of(admin, monkeypatch, topicPattern="[tu]", failOnDataLoss="false")
    assert list(lax.initialOffset()["topics"]) == ["u"]


def test_places_of_topics_that_are_not_read_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name with a typing error would begin somewhere else without a word."""
    admin = Admin(t=("i", (7,)))
    places = '{"tt": {"0": 5}, "t": "earliest"}'
    reader = reader_of(admin, monkeypatch, topics="t", startingOffsets=places)
    with pytest.raises(InvalidArgument, match="startingOffsets names topic 'tt', which"):
        reader.initialOffset()
    reader = reader_of(admin, monkeypatch, topics="t", startingOffsets='{"t": "earliest"}')
    assert reader.initialOffset() == at(0)


def test_a_query_begins_at_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark asks for it a second time once it knows the end, which is not to be before it."""
    admin = Admin(t=("i", (7,)))
    reader = reader_of(admin, monkeypatch, topics="t")
    begin = reader.initialOffset()
    admin.topics = {"t": ("i", (9,))}
    assert Positions.decode(reader.latestOffset(begin, ALL)) == Positions.decode(at(9))
    assert reader.initialOffset() == begin == at(7)


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_a_first_micro_batch_that_comes_again_has_the_same_range(
    starting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark asks a query that is started again where it begins: that is elsewhere by then.

    Its end has the beginning; ends of later micro-batches do not.
    """
    admin = Admin(t=("i", (7, 2)))
    admin.earliest = 1
    reader = reader_of(admin, monkeypatch, topics="t", startingOffsets=starting)
    begin = reader.initialOffset()
    assert begin == (at(1, 1) if starting == "earliest" else at(7, 2))
    assert reader.latestOffset(at(7, 2), ALL) == at(7, 2), "nothing new"
    admin.topics = {"t": ("i", (9, 5))}
    end = reader.latestOffset(begin, ALL)
    ranges = [each.range for each in reader.partitions(begin, end)]  # type: ignore[attr-defined]
    assert [(each.start, each.end) for each in ranges] == (
        [(1, 9), (1, 5)] if starting == "earliest" else [(7, 9), (2, 5)]
    )
    admin.topics, admin.earliest = {"t": ("i", (20, 20))}, 3  # retention deletes in the meantime
    again = reader_of(admin, monkeypatch, topics="t", startingOffsets=starting)
    other = again.initialOffset()
    assert other != begin
    replayed = again.partitions(other, json.loads(json.dumps(end)))
    assert [each.range for each in replayed] == ranges  # type: ignore[attr-defined]
    assert "from" not in again.latestOffset(at(9, 9), ALL)
    admin.topics = {"t": ("i", (9, 5))}
    assert again.latestOffset(end, ALL) == end, "Spark takes another place for more to read"


def test_a_stream_that_waits_leaves_brokers_in_peace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark asks again after 10 ms. What has come is handed over at once."""
    admin = Admin(t=("i", (7,)))
    reader = reader_of(admin, monkeypatch, topics="t")
    now, slept = [100.0], list[float]()
    monkeypatch.setattr(
        stream, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=slept.append)
    )
    for places in (at(5), at(7), at(7)):
        assert reader.latestOffset(places, ALL) == at(7)
    assert slept == [0, 0, pytest.approx(stream.IDLE_PAUSE_S)]
    now[0] += 1
    reader.latestOffset(at(7), ALL)
    assert slept[-1] == 0


@pytest.mark.parametrize("method", ["readable_topics", "get_topic"])
def test_a_stream_waits_while_zookeeper_is_away(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that begins does not, nor does one that ends by itself: it would end too early."""
    admin = Admin(t=("i", (7,)))
    away = CoordinationError("ZooKeeper is away")
    reader = reader_of(admin, monkeypatch, topicPattern="t")
    admin.errors[method] = away
    with pytest.raises(CoordinationError):
        reader.latestOffset(at(5), ALL)
    admin.errors.clear()
    assert reader.latestOffset(at(5), ALL) == at(7)
    admin.errors[method] = away
    assert reader.latestOffset(at(7), ALL) == at(7)
    admin.errors.clear()
    reader.prepareForTriggerAvailableNow()
    admin.errors[method] = away
    with pytest.raises(CoordinationError):
        reader.latestOffset(at(7), ALL)


def test_a_query_that_ends_by_itself_does_not_end_before_a_silent_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waits for the timeout, and fails; a query that goes on reads the others meanwhile."""
    admin = Admin(t=("i", (9 * MIB, 9 * MIB)))
    reader = reader_of(admin, monkeypatch, topics="t", timeout="0.01")
    admin.silent = {1}
    assert reader.latestOffset(at(5, 5), ALL) == at(9 * MIB, 5)
    admin.silent = set()
    reader.prepareForTriggerAvailableNow()
    admin.silent = {1}
    with pytest.raises(NotMaster, match=r"the brokers of 1 partitions of 't' do not answer"):
        reader.latestOffset(at(5, 5), ALL)
    admin.silent = set()
    assert reader.latestOffset(at(5, 5), ALL) == at(9 * MIB, 9 * MIB)
    admin.errors["boundaries"] = NotMaster("the broker is silent")
    with pytest.raises(NotMaster, match="the broker is silent"):
        reader.latestOffset(at(5, 5), ReadMaxBytes(MIB))
