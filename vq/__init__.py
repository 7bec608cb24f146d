"""vq: a durable, partitioned message queue coordinated through ZooKeeper.

The names below are the public API for blocking code; ``vq.aio`` has the same as coroutines,
``vq.admin`` the values of operators, and ``vq.serializers`` makes contents of objects. They are
loaded on first use, so that ``import vq`` costs nothing to programs that need one of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vq.version import __version__

if TYPE_CHECKING:
    from vq import admin as admin
    from vq import aio as aio
    from vq import serializers as serializers
    from vq.admin.blocking import Admin
    from vq.blocking import MessageConsumer, MessageFactory, MessageProducer
    from vq.client.config import (
        ConsumerConfig,
        MessageFactoryConfig,
        OnListenerError,
        OnUnavailable,
        ProducerConfig,
        ReadFrom,
        StartPosition,
        WhenFull,
    )
    from vq.client.future import SendFuture
    from vq.client.producer.interceptors import ProducerInterceptor
    from vq.client.producer.metrics import Latency, ProducerMetrics, TopicMetrics
    from vq.client.producer.partition_load import PartitionLoad
    from vq.client.producer.partitioner import TopicPartitions
    from vq.errors import (
        BatchFailed,
        InvalidArgument,
        InvalidState,
        OutcomeUnknown,
        Refused,
        VqError,
    )
    from vq.model import (
        Address,
        Message,
        PartitionPlacement,
        PartitionTrouble,
        SendResult,
        StatusResult,
        TopicPartition,
        TopicSettings,
    )


_HOMES = {
    "vq.admin.blocking": ("Admin",),
    "vq.blocking": ("MessageConsumer", "MessageFactory", "MessageProducer"),
    "vq.client.config": (
        "ConsumerConfig",
        "MessageFactoryConfig",
        "OnListenerError",
        "OnUnavailable",
        "ProducerConfig",
        "ReadFrom",
        "StartPosition",
        "WhenFull",
    ),
    "vq.client.future": ("SendFuture",),
    "vq.client.producer.interceptors": ("ProducerInterceptor",),
    "vq.client.producer.metrics": ("Latency", "ProducerMetrics", "TopicMetrics"),
    "vq.client.producer.partition_load": ("PartitionLoad",),
    "vq.client.producer.partitioner": ("TopicPartitions",),
    "vq.errors": (
        "BatchFailed",
        "InvalidArgument",
        "InvalidState",
        "OutcomeUnknown",
        "Refused",
        "VqError",
    ),
    "vq.model": (
        "Address",
        "Message",
        "PartitionPlacement",
        "PartitionTrouble",
        "SendResult",
        "StatusResult",
        "TopicPartition",
        "TopicSettings",
    ),
}
#: Attributes of the package, without imports of their own.
_MODULES = frozenset({"admin", "aio", "serializers"})
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Address",
    "Admin",
    "BatchFailed",
    "ConsumerConfig",
    "InvalidArgument",
    "InvalidState",
    "Latency",
    "Message",
    "MessageConsumer",
    "MessageFactory",
    "MessageFactoryConfig",
    "MessageProducer",
    "OnListenerError",
    "OnUnavailable",
    "OutcomeUnknown",
    "PartitionLoad",
    "PartitionPlacement",
    "PartitionTrouble",
    "ProducerConfig",
    "ProducerInterceptor",
    "ProducerMetrics",
    "ReadFrom",
    "Refused",
    "SendFuture",
    "SendResult",
    "StartPosition",
    "StatusResult",
    "TopicMetrics",
    "TopicPartition",
    "TopicPartitions",
    "TopicSettings",
    "VqError",
    "WhenFull",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name in {
        "admin",
        "aio",
        "serializers",
    }:  # as attributes of the package, without imports of their own
        return import_module(f"vq.{name}")
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'vq' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
