"""The contract that a member wants: what its settings and subscriptions say. Pure."""

from collections.abc import Mapping

from vq.client.config import ConsumerConfig
from vq.client.consumer.deliver.policy import founding_policy
from vq.coordination.tree.values.consumers import ConsumerGroup
from vq.message_filter import Filter
from vq.topic_pattern import is_pattern


def wanted_contract(
    config: ConsumerConfig, filters: Mapping[str, Filter], *, strategy: str, offset_store: str
) -> ConsumerGroup:
    """Return the contract of a group that a member founds.

    Args:
        config: Its settings.
        filters: What it reads: topics, and patterns of names.
        strategy: How it shares out partitions.
        offset_store: What has its offsets.
    """
    return ConsumerGroup(
        start=str(config.start_position),
        topics={each: wanted for each, wanted in filters.items() if not is_pattern(each)},
        patterns={each: wanted for each, wanted in filters.items() if is_pattern(each)},
        model=str(config.model),
        mode=str(config.mode),
        order=str(config.order),
        strategy=strategy,
        offset_store=offset_store,
        failure=founding_policy(config),
    )
