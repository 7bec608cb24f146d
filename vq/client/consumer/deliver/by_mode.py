"""Which delivery a partition has: in turn, or sliding."""

from collections.abc import Callable, Iterable
from typing import Any

from vq.backoff import Draws
from vq.client.config import ConsumerConfig
from vq.client.consumer.deliver.delivery import Delivery, DeliveryHooks, Executor
from vq.client.consumer.deliver.failures import Failures
from vq.client.consumer.deliver.in_turn import InTurn
from vq.client.consumer.deliver.permit import Permit
from vq.client.consumer.deliver.policy import PolicyInForce
from vq.client.consumer.deliver.sliding import Sliding
from vq.coordination.tree.values.group_terms import GroupModel, OnFailure, WorkingMode
from vq.errors import InvalidArgument
from vq.message_filter import ALL, Filter
from vq.model import TopicPartition


def is_in_turn(config: ConsumerConfig) -> bool:
    """Whether a partition's messages are handled one at a time, each by itself."""
    return config.mode is WorkingMode.ORDERLY and config.batch_size == 1


def check_listener_for(config: ConsumerConfig, listener: object) -> None:
    """Refuse settings that nothing acts on.

    Raises:
        InvalidArgument: There is no listener, and the settings say how many messages it is at, or
            ask for a retry topic.
    """
    if config.model is GroupModel.SHARED:  # calls that take its messages settle each by itself
        return
    if listener is None and not is_in_turn(config):
        raise InvalidArgument(
            f"mode = {str(config.mode)!r} and batch_size = {config.batch_size} are for listeners, "
            "and this topic has none; give subscribe a listener, or leave them out"
        )
    if listener is None and config.on_failure is OnFailure.RETRY_TOPIC:
        raise InvalidArgument(
            f"on_failure = {str(config.on_failure)!r} is for listeners, and this topic has none; "
            "give subscribe a listener, or leave it out"
        )


def delivery_for(
    partition: TopicPartition,
    position: int,
    listener: Any,
    config: ConsumerConfig,
    policy: PolicyInForce,
    rng: Draws,
    now_ms: Callable[[], int],
    *,
    executor: Executor,
    permit: Permit,
    hooks: DeliveryHooks,
    wanted: Filter = ALL,
    ahead: Iterable[tuple[int, int]] = (),
    owed: int = 0,
) -> Delivery:
    """Return what delivers a partition from ``position`` on, as the settings say.

    ``ahead`` are messages behind it that were handled before. One that is at one message at a time
    has none, and delivers those of another mode again. ``owed``: see ``Delivery``.
    """
    failures = Failures(partition, config.group, policy, rng, now_ms)
    if is_in_turn(config):
        return InTurn(
            partition,
            position,
            listener,
            failures,
            executor=executor,
            permit=permit,
            hooks=hooks,
            most=config.window_messages,
            owed=owed,
            wanted=wanted,
        )
    return Sliding(
        partition,
        position,
        listener,
        failures,
        config=config,
        ahead=ahead,
        executor=executor,
        permit=permit,
        hooks=hooks,
        owed=owed,
        wanted=wanted,
    )
