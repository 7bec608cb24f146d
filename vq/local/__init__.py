"""A durable queue inside one process, on the store of the brokers: ``LocalQueue``.

In here: the queue, what builds on it (mailboxes, pipelines), and its server for other processes.
Not in here: the log and its files (``vq.store``), and coroutines (``vq.aio``).

    items, settings        plain values
    state, notes           what decides, and the bytes of its records; no I/O, no clock, no thread
    pad, storage           the files
    queue                  the thread that commits, and the API for threads
"""

from vq.local.items import LocalItem
from vq.local.queue import LocalQueue
from vq.local.settings import LocalQueueConfig, WhenCrowded

__all__ = ["LocalItem", "LocalQueue", "LocalQueueConfig", "WhenCrowded"]
