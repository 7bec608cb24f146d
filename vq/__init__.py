"""vq: a durable, partitioned message queue coordinated through ZooKeeper.

The names below are the public API for blocking code; ``vq.aio`` has the same as coroutines,
``vq.admin`` the values of operators, and ``vq.serializers`` makes contents of objects. They are
loaded on first use, so that ``import vq`` costs nothing to programs that need one of them.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from vq.interpreter import refusal
from vq.version import __version__ as __version__

if refused := refusal(gil_enabled=getattr(sys, "_is_gil_enabled", lambda: True)()):
    raise ImportError(refused)

# isort: off
# A name as itself is public to type checkers; isort would give each a statement.
if TYPE_CHECKING:
    from vq import (
        admin as admin,
        aio as aio,
        columns as columns,
        errors as errors,
        local as local,
        serializers as serializers,
        testing as testing,
    )
    from vq.blocking import (
        MessageConsumer as MessageConsumer,
        MessageFactory as MessageFactory,
        MessageProducer as MessageProducer,
    )
    from vq.blocking.admin import Admin as Admin
    from vq.blocking.distributed import (
        DistributedTransaction as DistributedTransaction,
        distributed as distributed,
    )
    from vq.blocking.transaction import Transaction as Transaction
    from vq.client.config import (
        ConsumerConfig as ConsumerConfig,
        MessageFactoryConfig as MessageFactoryConfig,
        OnUnavailable as OnUnavailable,
        ProducerConfig as ProducerConfig,
        ReadFrom as ReadFrom,
        StartPosition as StartPosition,
        WhenFull as WhenFull,
    )
    from vq.client.consumer.deliver.tries import RETRY as RETRY, Retry as Retry
    from vq.client.consumer.deliver.workers import Listener as Listener
    from vq.client.consumer.shared.work import SharedMessage as SharedMessage
    from vq.client.future import SendCallback as SendCallback, SendFuture as SendFuture
    from vq.client.producer.interceptors import ProducerInterceptor as ProducerInterceptor
    from vq.client.producer.metrics import (
        Latency as Latency,
        ProducerMetrics as ProducerMetrics,
        RequestMetrics as RequestMetrics,
        TopicMetrics as TopicMetrics,
    )
    from vq.client.producer.spread.partitioner import (
        Partitioner as Partitioner,
        PartitionLoad as PartitionLoad,
        TopicPartitions as TopicPartitions,
    )
    from vq.client.producer.transaction_listener import (
        COMMIT as COMMIT,
        ROLLBACK as ROLLBACK,
        UNKNOWN as UNKNOWN,
        HalfResult as HalfResult,
        TransactionListener as TransactionListener,
        TransactionResolution as TransactionResolution,
    )
    from vq.client.reading.positions import Moment as Moment, Position as Position
    from vq.coordination.groups.rebalance import (
        GroupBalance as GroupBalance,
        GroupStrategy as GroupStrategy,
    )
    from vq.coordination.tree.values.group_terms import (
        FailurePolicy as FailurePolicy,
        GroupModel as GroupModel,
        OnBadRecord as OnBadRecord,
        OnFailure as OnFailure,
        Ordering as Ordering,
        WorkingMode as WorkingMode,
    )
    from vq.errors import (
        BatchFailed as BatchFailed,
        BranchesLeft as BranchesLeft,
        InvalidArgument as InvalidArgument,
        InvalidState as InvalidState,
        OutcomeUnknown as OutcomeUnknown,
        ProducerFenced as ProducerFenced,
        Refused as Refused,
        TransactionInDoubt as TransactionInDoubt,
        TransactionRefused as TransactionRefused,
        VqError as VqError,
    )
    from vq.message_filter import MessageFilter as MessageFilter, Where as Where
    from vq.model import (
        Address as Address,
        Cancellation as Cancellation,
        Compression as Compression,
        FlushMode as FlushMode,
        Key as Key,
        Message as Message,
        MessageList as MessageList,
        OffsetBounds as OffsetBounds,
        PartitionPlacement as PartitionPlacement,
        PartitionState as PartitionState,
        PartitionTrouble as PartitionTrouble,
        ProducerIdentity as ProducerIdentity,
        Replication as Replication,
        RetentionPolicy as RetentionPolicy,
        SendResult as SendResult,
        Span as Span,
        StatusResult as StatusResult,
        TopicPartition as TopicPartition,
        TopicSettings as TopicSettings,
        TransactionState as TransactionState,
        Xid as Xid,
    )
    from vq.offset_stores.file import FileOffsetStore as FileOffsetStore
    from vq.offset_stores.sql import SqlOffsetStore as SqlOffsetStore
    from vq.offset_stores.table import OffsetTable as OffsetTable
    from vq.reserved import (
        DeliveryFailure as DeliveryFailure,
        MessageOrigin as MessageOrigin,
        ReplyAddress as ReplyAddress,
    )
    from vq.security.tls import Tls as Tls
    from vq.worker.soft_limit import SoftTimeLimit as SoftTimeLimit
    from vq.worker.task import Task as Task, UnknownTask as UnknownTask, task as task
# isort: on


_HOMES = {
    "vq.blocking.admin": "Admin",
    "vq.blocking": "MessageConsumer MessageFactory MessageProducer",
    "vq.blocking.distributed": "DistributedTransaction distributed",
    "vq.blocking.transaction": "Transaction",
    "vq.client.config": (
        "ConsumerConfig MessageFactoryConfig OnUnavailable ProducerConfig ReadFrom StartPosition "
        "WhenFull"
    ),
    "vq.client.consumer.deliver.tries": "RETRY Retry",
    "vq.client.consumer.shared.work": "SharedMessage",
    "vq.client.consumer.deliver.workers": "Listener",
    "vq.coordination.groups.rebalance": "GroupBalance GroupStrategy",
    "vq.coordination.tree.values.group_terms": (
        "FailurePolicy GroupModel OnBadRecord OnFailure Ordering WorkingMode"
    ),
    "vq.client.reading.positions": "Moment Position",
    "vq.client.future": "SendCallback SendFuture",
    "vq.client.producer.interceptors": "ProducerInterceptor",
    "vq.client.producer.metrics": "Latency ProducerMetrics RequestMetrics TopicMetrics",
    "vq.client.producer.transaction_listener": (
        "COMMIT ROLLBACK UNKNOWN HalfResult TransactionListener TransactionResolution"
    ),
    "vq.client.producer.spread.partitioner": "PartitionLoad Partitioner TopicPartitions",
    "vq.errors": (
        "BatchFailed BranchesLeft InvalidArgument InvalidState OutcomeUnknown ProducerFenced "
        "Refused TransactionInDoubt TransactionRefused VqError"
    ),
    "vq.message_filter": "MessageFilter Where",
    "vq.model": (
        "Address Cancellation Compression FlushMode Key Message MessageList OffsetBounds "
        "PartitionPlacement PartitionState PartitionTrouble ProducerIdentity Replication "
        "RetentionPolicy SendResult Span StatusResult TopicPartition TopicSettings "
        "TransactionState Xid"
    ),
    "vq.offset_stores.file": "FileOffsetStore",
    "vq.offset_stores.sql": "SqlOffsetStore",
    "vq.offset_stores.table": "OffsetTable",
    "vq.reserved": "DeliveryFailure MessageOrigin ReplyAddress",
    "vq.security.tls": "Tls",
    "vq.worker.soft_limit": "SoftTimeLimit",
    "vq.worker.task": "Task UnknownTask task",
}
#: Attributes of the package, without imports of their own.
_MODULES = frozenset(
    {"admin", "aio", "columns", "datamanager", "errors", "local", "serializers", "testing"}
)
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


if not TYPE_CHECKING:  # a type checker takes the imports above, and would take any other name, too
    __all__ = sorted([*_HOME_OF, "__version__"])

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
    return sorted([*_HOME_OF, "__version__"])
