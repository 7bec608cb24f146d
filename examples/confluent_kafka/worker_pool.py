"""As ../worker_pool.py, with confluent-kafka: python worker_pool.py [threads].

It needs the topics `resize` and `resize-failed`. The library calls no threads of yours: the
program keeps the order within a partition, and commits only what is done.
"""

import logging
import os
import queue
import signal
import sys
import threading

from confluent_kafka import Consumer, Producer, TopicPartition

SERVERS = os.environ.get("KAFKA", "127.0.0.1:9092")
AHEAD = 100  # messages in hand of one partition, before it is paused


def resize(picture):
    if not picture.startswith(b"picture"):
        raise ValueError(f"{picture!r} is no picture")
    threading.Event().wait(0.05)  # the slow work


def work(message):
    for tries_left in (2, 1, 0):
        try:
            resize(message.value())
            logging.info("resized %s", message.value().decode())
            return
        except ValueError as error:
            if not tries_left:
                keep(message.value(), error)


def keep(picture, error):
    failed = []
    producer.produce(
        "resize-failed",
        picture,
        headers={"error": str(error)},
        on_delivery=lambda problem, _: failed.append(problem),
    )
    producer.flush(30)
    if not failed or failed[0]:
        raise RuntimeError(f"not kept aside: {failed}")


class Partition:
    """The messages of one partition, handled in order by one thread of the pool at a time."""

    def __init__(self):
        self.waiting = queue.Queue()
        self.running = False
        self.done = None  # the offset to commit
        self.lost = False
        self.paused = False


def handle(partition, lock, jobs):
    message = partition.waiting.get()
    try:
        if not partition.lost:
            work(message)
            partition.done = message.offset() + 1
    except Exception as error:
        logging.warning("tried again later: %s", error)
        stop.set()  # nothing after it may be committed
        partition.lost = True
    with lock:
        if partition.waiting.empty():
            partition.running = False
        else:
            jobs.put(partition)


def pool_thread(lock, jobs):
    while (partition := jobs.get()) is not None:
        handle(partition, lock, jobs)


logging.basicConfig(level=logging.INFO, format="%(message)s")
stop = threading.Event()
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: stop.set())
lock, jobs, partitions = threading.Lock(), queue.Queue(), {}
threads = [
    threading.Thread(target=pool_thread, args=(lock, jobs))
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 4)
]
producer = Producer({"bootstrap.servers": SERVERS, "enable.idempotence": True})
consumer = Consumer(
    {
        "bootstrap.servers": SERVERS,
        "group.id": "resizers",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
    }
)


def commit(places):
    done = [
        TopicPartition(topic, number, partitions[topic, number].done)
        for topic, number in places
        if partitions[topic, number].done is not None
    ]
    if done:
        consumer.commit(offsets=done, asynchronous=False)


def revoked(_, places):
    names = [(place.topic, place.partition) for place in places]
    names = [name for name in names if name in partitions]
    for name in names:
        partitions[name].lost = True
    while any(partitions[name].running for name in names):
        threading.Event().wait(0.01)
    commit(names)
    for name in names:
        del partitions[name]


consumer.subscribe(["resize"], on_revoke=revoked)
for thread in threads:
    thread.start()
try:
    while not stop.is_set():
        message = consumer.poll(0.1)
        if message is not None and not message.error():
            place = (message.topic(), message.partition())
            partition = partitions.setdefault(place, Partition())
            with lock:
                partition.waiting.put(message)
                if not partition.running:
                    partition.running = True
                    jobs.put(partition)
        for (topic, number), partition in partitions.items():
            full = partition.waiting.qsize() >= AHEAD
            if full != partition.paused:
                partition.paused = full
                places = [TopicPartition(topic, number)]
                consumer.pause(places) if full else consumer.resume(places)
        commit(list(partitions))
finally:
    for _ in threads:
        jobs.put(None)
    for thread in threads:
        thread.join()
    commit(list(partitions))
    consumer.close()
