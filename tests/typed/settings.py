"""Settings that are a choice, as text and as members of their class."""

import vq

BY_TEXT = (
    vq.ProducerConfig(
        when_full="raise", on_unavailable="fail", compression="zstd", partitioner="sticky"
    ),
    vq.ConsumerConfig(
        group="shop",
        start_position="latest",
        mode="keyed",
        on_failure="skip",
        read_from="nearest",
        rack="r1",
    ),
    vq.TopicSettings(flush="async", replication="async", compression="lz4"),
    vq.admin.Target(goal="earliest"),
)
BY_MEMBER = (
    vq.ProducerConfig(when_full=vq.WhenFull.RAISE, on_unavailable=vq.OnUnavailable.FAIL),
    vq.ConsumerConfig(
        group="shop",
        start_position=vq.StartPosition.LATEST,
        mode=vq.WorkingMode.CONCURRENT,
        on_failure=vq.OnFailure.SKIP,
        read_from=vq.ReadFrom.ANY,
    ),
    vq.TopicSettings(flush=vq.FlushMode.ASYNC, replication=vq.Replication.ASYNC),
    vq.admin.Target(goal=vq.admin.Goal.SHIFT, value=-1),
)


def from_a_file(setting: str) -> vq.ConsumerConfig:
    """A text that the checker does not know is made a member first."""
    return vq.ConsumerConfig(group="shop", on_failure=vq.OnFailure(setting))


def skips(config: vq.ConsumerConfig) -> bool:
    return config.on_failure is vq.OnFailure.SKIP


def is_durable(settings: vq.TopicSettings) -> bool:
    return settings.flush == "sync" and settings.replication is vq.Replication.SYNC
