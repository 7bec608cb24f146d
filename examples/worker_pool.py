"""Threads that resize pictures; a picture that fails three times is kept aside.

    python worker_pool.py [threads]

Jobs of one customer are handled in order, others side by side. It needs the topics `resize` and
`resize-failed`. Ctrl-C or SIGTERM finishes what is at work, commits it and ends.
"""

import logging
import signal
import sys
import threading

import vq


def resize(picture):
    if not picture.startswith(b"picture"):
        raise ValueError(f"{picture!r} is no picture")
    threading.Event().wait(0.05)  # the slow work


def work(message):
    for tries_left in (2, 1, 0):
        try:
            resize(message.content)
            logging.info("resized %s", message.content.decode())
            return
        except ValueError as error:
            if not tries_left:
                kept = vq.Message("resize-failed", message.content, headers={"error": str(error)})
                producer.send_sync(kept)  # if this raises, the message comes again


logging.basicConfig(level=logging.INFO, format="%(message)s")
stop = threading.Event()
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: stop.set())
threads = int(sys.argv[1]) if len(sys.argv) > 1 else 4
with vq.MessageFactory() as factory, factory.create_producer() as producer:
    pool = vq.ConsumerConfig(group="resizers", workers=threads)
    with factory.create_consumer(pool) as consumer:
        consumer.subscribe("resize", 64 * 1024, work).start()
        stop.wait()
