"""A durable queue inside one process, on the store of the brokers: ``LocalQueue``.

In here: the queue, what builds on it (mailboxes, pipelines), and its server for other processes.
Not in here: the log and its files (``vq.store``), and coroutines (``vq.aio``).

    items, settings        plain values
    files                  the files, and the bytes in them
    core                   what decides, who waits, and the thread that commits
    looks, queue           the API for threads
    wire, server, client   a queue for other processes of the machine
    workers                threads that call a handler: pools, mailboxes, stages
    listeners, factory     producers and consumers with the settings of a cluster's
"""

from vq.local.client import LocalQueueClient
from vq.local.files.damage import DamagedMessages
from vq.local.items import LocalItem
from vq.local.looks import ListedMessage, LocalQueueMetrics, MessageStanding
from vq.local.queue import LocalQueue
from vq.local.server import LocalQueueServer
from vq.local.settings import LocalQueueConfig, WhenCrowded
from vq.local.workers import LocalWorkers

__all__ = [
    "DamagedMessages",
    "ListedMessage",
    "LocalItem",
    "LocalQueue",
    "LocalQueueClient",
    "LocalQueueConfig",
    "LocalQueueMetrics",
    "LocalQueueServer",
    "LocalWorkers",
    "MessageStanding",
    "WhenCrowded",
]
