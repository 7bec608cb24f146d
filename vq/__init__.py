"""vq: a durable, partitioned message queue coordinated through ZooKeeper.

The names below are the public API for blocking code; ``vq.aio`` has the same as coroutines,
``vq.admin`` the values of operators, and ``vq.serializers`` makes contents of objects. They are
loaded on first use, so that ``import vq`` costs nothing to programs that need one of them.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from vq.interpreter import refusal
from vq.version import __version__

if refused := refusal(gil_enabled=getattr(sys, "_is_gil_enabled", lambda: True)()):
    raise ImportError(refused)

if TYPE_CHECKING:
    from vq import admin as admin
    from vq import aio as aio
    from vq import columns as columns
    from vq import errors as errors
    from vq import local as local
    from vq import serializers as serializers
    from vq import testing as testing
    from vq.blocking import MessageConsumer, MessageFactory, MessageProducer
    from vq.blocking.admin import Admin
    from vq.blocking.distributed import DistributedTransaction, distributed
    from vq.blocking.transaction import Transaction
    from vq.client.config import (
        ConsumerConfig,
        MessageFactoryConfig,
        OnUnavailable,
        ProducerConfig,
        ReadFrom,
        StartPosition,
        WhenFull,
    )
    from vq.client.consumer.deliver.tries import RETRY, Retry
    from vq.client.consumer.deliver.workers import Listener
    from vq.client.consumer.shared.work import SharedMessage
    from vq.client.future import (
        SendCallback,
        SendFuture,
    )
    from vq.client.producer.interceptors import ProducerInterceptor
    from vq.client.producer.metrics import Latency, ProducerMetrics, RequestMetrics, TopicMetrics
    from vq.client.producer.spread.partitioner import (
        Partitioner,
        PartitionLoad,
        TopicPartitions,
    )
    from vq.client.producer.transaction_listener import (
        COMMIT,
        ROLLBACK,
        UNKNOWN,
        HalfResult,
        TransactionListener,
        TransactionResolution,
    )
    from vq.client.reading.positions import (
        Moment,
        Position,
    )
    from vq.coordination.groups.rebalance import GroupBalance, GroupStrategy
    from vq.coordination.tree.values.group_terms import (
        FailurePolicy,
        GroupModel,
        OnBadRecord,
        OnFailure,
        Ordering,
        WorkingMode,
    )
    from vq.errors import (
        BatchFailed,
        BranchesLeft,
        InvalidArgument,
        InvalidState,
        OutcomeUnknown,
        ProducerFenced,
        Refused,
        TransactionInDoubt,
        TransactionRefused,
        VqError,
    )
    from vq.message_filter import MessageFilter, Where
    from vq.model import (
        Address,
        Cancellation,
        Compression,
        FlushMode,
        Key,
        Message,
        MessageList,
        OffsetBounds,
        PartitionPlacement,
        PartitionState,
        PartitionTrouble,
        ProducerIdentity,
        Replication,
        RetentionPolicy,
        SendResult,
        Span,
        StatusResult,
        TopicPartition,
        TopicSettings,
        TransactionState,
        Xid,
    )
    from vq.offset_stores.file import FileOffsetStore
    from vq.offset_stores.sql import SqlOffsetStore
    from vq.offset_stores.table import OffsetTable
    from vq.reserved import DeliveryFailure, MessageOrigin, ReplyAddress
    from vq.security.tls import Tls
    from vq.worker.soft_limit import SoftTimeLimit
    from vq.worker.task import Task, UnknownTask, task


_HOMES = {
    "vq.blocking.admin": ("Admin",),
    "vq.blocking": ("MessageConsumer", "MessageFactory", "MessageProducer"),
    "vq.blocking.distributed": ("DistributedTransaction", "distributed"),
    "vq.blocking.transaction": ("Transaction",),
    "vq.client.config": (
        "ConsumerConfig",
        "MessageFactoryConfig",
        "OnUnavailable",
        "ProducerConfig",
        "ReadFrom",
        "StartPosition",
        "WhenFull",
    ),
    "vq.client.consumer.deliver.tries": ("RETRY", "Retry"),
    "vq.client.consumer.shared.work": ("SharedMessage",),
    "vq.client.consumer.deliver.workers": ("Listener",),
    "vq.coordination.groups.rebalance": ("GroupBalance", "GroupStrategy"),
    "vq.coordination.tree.values.group_terms": (
        "FailurePolicy",
        "GroupModel",
        "OnBadRecord",
        "OnFailure",
        "Ordering",
        "WorkingMode",
    ),
    "vq.client.reading.positions": (
        "Moment",
        "Position",
    ),
    "vq.client.future": (
        "SendCallback",
        "SendFuture",
    ),
    "vq.client.producer.interceptors": ("ProducerInterceptor",),
    "vq.client.producer.metrics": ("Latency", "ProducerMetrics", "RequestMetrics", "TopicMetrics"),
    "vq.client.producer.transaction_listener": (
        "COMMIT",
        "ROLLBACK",
        "UNKNOWN",
        "HalfResult",
        "TransactionListener",
        "TransactionResolution",
    ),
    "vq.client.producer.spread.partitioner": (
        "PartitionLoad",
        "Partitioner",
        "TopicPartitions",
    ),
    "vq.errors": (
        "BatchFailed",
        "BranchesLeft",
        "InvalidArgument",
        "InvalidState",
        "OutcomeUnknown",
        "ProducerFenced",
        "Refused",
        "TransactionInDoubt",
        "TransactionRefused",
        "VqError",
    ),
    "vq.message_filter": ("MessageFilter", "Where"),
    "vq.model": (
        "Address",
        "Cancellation",
        "Compression",
        "FlushMode",
        "Key",
        "Message",
        "MessageList",
        "OffsetBounds",
        "PartitionPlacement",
        "PartitionState",
        "PartitionTrouble",
        "ProducerIdentity",
        "Replication",
        "RetentionPolicy",
        "SendResult",
        "Span",
        "StatusResult",
        "TopicPartition",
        "TopicSettings",
        "TransactionState",
        "Xid",
    ),
    "vq.offset_stores.file": ("FileOffsetStore",),
    "vq.offset_stores.sql": ("SqlOffsetStore",),
    "vq.offset_stores.table": ("OffsetTable",),
    "vq.reserved": ("DeliveryFailure", "MessageOrigin", "ReplyAddress"),
    "vq.security.tls": ("Tls",),
    "vq.worker.soft_limit": ("SoftTimeLimit",),
    "vq.worker.task": ("Task", "UnknownTask", "task"),
}
#: Attributes of the package, without imports of their own.
_MODULES = frozenset(
    {"admin", "aio", "columns", "datamanager", "errors", "local", "serializers", "testing"}
)
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "COMMIT",
    "RETRY",
    "ROLLBACK",
    "UNKNOWN",
    "Address",
    "Admin",
    "BatchFailed",
    "BranchesLeft",
    "Cancellation",
    "Compression",
    "ConsumerConfig",
    "DeliveryFailure",
    "DistributedTransaction",
    "FailurePolicy",
    "FileOffsetStore",
    "FlushMode",
    "GroupBalance",
    "GroupModel",
    "GroupStrategy",
    "HalfResult",
    "InvalidArgument",
    "InvalidState",
    "Key",
    "Latency",
    "Listener",
    "Message",
    "MessageConsumer",
    "MessageFactory",
    "MessageFactoryConfig",
    "MessageFilter",
    "MessageList",
    "MessageOrigin",
    "MessageProducer",
    "Moment",
    "OffsetBounds",
    "OffsetTable",
    "OnBadRecord",
    "OnFailure",
    "OnUnavailable",
    "Ordering",
    "OutcomeUnknown",
    "PartitionLoad",
    "PartitionPlacement",
    "PartitionState",
    "PartitionTrouble",
    "Partitioner",
    "Position",
    "ProducerConfig",
    "ProducerFenced",
    "ProducerIdentity",
    "ProducerInterceptor",
    "ProducerMetrics",
    "ReadFrom",
    "Refused",
    "Replication",
    "ReplyAddress",
    "RequestMetrics",
    "RetentionPolicy",
    "Retry",
    "SendCallback",
    "SendFuture",
    "SendResult",
    "SharedMessage",
    "SoftTimeLimit",
    "Span",
    "SqlOffsetStore",
    "StartPosition",
    "StatusResult",
    "Task",
    "Tls",
    "TopicMetrics",
    "TopicPartition",
    "TopicPartitions",
    "TopicSettings",
    "Transaction",
    "TransactionInDoubt",
    "TransactionListener",
    "TransactionRefused",
    "TransactionResolution",
    "TransactionState",
    "UnknownTask",
    "VqError",
    "WhenFull",
    "Where",
    "WorkingMode",
    "Xid",
    "__version__",
    "distributed",
    "task",
]


if not TYPE_CHECKING:  # a type checker would take any name for one of the package

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return import_module(f"vq.{name}")
        home = _HOME_OF.get(name)
        if home is None:
            raise AttributeError(f"module 'vq' has no attribute {name!r}")
        value = getattr(import_module(home), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
