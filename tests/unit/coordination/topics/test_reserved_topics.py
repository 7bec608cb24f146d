"""Reserved topics are as safe as the strictest of the topics that they are for, and keep all."""

from support.cases import case

from vq.coordination.topics.reserved_topics import settings_like
from vq.limits import MESSAGE_BYTES_MAX
from vq.model import FlushMode, Replication, RetentionPolicy, TopicSettings

ARCHIVED = TopicSettings(retention_policy="archive", archive_after_hours=5)


def test_the_strictest_settings_of_any_topic_are_taken() -> None:
    one = TopicSettings(
        partitions=3,
        flush="async",
        flush_interval_messages=10,
        replication="async",
        max_message_bytes=10,
        retention_hours=1,
        retention_bytes=5,
        retention_early_hours=1,
        pool="p",
        min_insync=2,
    )
    two = TopicSettings(partitions=2, flush="async", flush_interval_ms=7, pool="p")
    found = settings_like([one, two], TopicSettings())
    assert found.partitions == 3
    assert (found.flush, found.replication) == (FlushMode.ASYNC, Replication.SYNC)
    assert (found.flush_interval_messages, found.flush_interval_ms) == (10, 7)
    assert (found.min_insync, found.pool) == (2, "p")
    assert settings_like([one, TopicSettings()], TopicSettings()).flush is FlushMode.SYNC
    assert settings_like([one, TopicSettings(pool="q")], TopicSettings()).pool is None


def test_everything_is_kept_and_any_message_taken_whatever_the_topics_say() -> None:
    short = TopicSettings(retention_hours=1, retention_bytes=5, max_message_bytes=3, writable=False)
    keep = TopicSettings(retention_policy="keep", archive_after_hours=3)
    for defaults in (TopicSettings(), ARCHIVED, short, keep):
        for strict in ([], [short], [keep, ARCHIVED]):
            with case(defaults, strict):
                found = settings_like(strict, defaults)
                assert (found.retention_hours, found.retention_bytes) == (None, None)
                assert found.retention_early_hours is None
                assert found.retention_policy is not RetentionPolicy.KEEP
                assert found.max_message_bytes == MESSAGE_BYTES_MAX
                assert found.writable
                assert found.readable


def test_blocks_become_archives_where_those_of_new_topics_do() -> None:
    assert settings_like([TopicSettings()], ARCHIVED).archived_after_hours == 5
    assert settings_like([ARCHIVED], TopicSettings()).archived_after_hours is None
