"""Four threads that put and four that take, until this process is killed.

    python -m support.local_queue_process DIRECTORY HISTORY ROUND

HISTORY gets a line for each event, each with one ``write``, which outlives a kill:

    put NAME         the put has returned
    take NAME        the message is with a taker
    fail NAME        the taker is about to give it back
    done NAME        the completion has returned
"""

import itertools
import os
import random
import sys
import threading

from vq.local import LocalQueue, LocalQueueConfig

CONFIG = LocalQueueConfig(retries=1, retry_s=0.05, memory_items=200, lease_s=None)
THREADS = 4


def main(directory: str, path: str, round_: str) -> None:
    """Work without an end."""
    history = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def tell(event: str, name: str) -> None:
        os.write(history, f"{event} {name}\n".encode())

    queue = LocalQueue(directory, CONFIG)
    tell("open", round_)

    def produce(thread: int) -> None:
        rng = random.Random(f"{round_} {thread}")
        for number in itertools.count():
            name = f"{round_}-{thread}-{number}"
            delay_s = 0.02 if rng.random() < 0.05 else None
            queue.put(name.encode(), priority=rng.randrange(3), delay_s=delay_s)
            tell("put", name)

    def consume(thread: int) -> None:
        rng = random.Random(f"{round_} {thread}")
        while (item := queue.take()) is not None:
            name = item.content.decode()
            tell("take", name)
            if rng.random() < 0.1:
                tell("fail", name)
                queue.fail(item)
            else:
                queue.complete(item)
                tell("done", name)

    for thread in range(THREADS):
        threading.Thread(target=produce, args=(thread,), daemon=True).start()
        threading.Thread(target=consume, args=(thread,), daemon=True).start()
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
