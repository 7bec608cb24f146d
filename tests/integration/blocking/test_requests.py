"""Requests of threads: each gets its own reply, over real connections."""

import concurrent.futures
import itertools

import pytest

import vq
from vq.errors import InvalidState, TimedOut
from vq.testing.waiting import WAIT_S, block_until


def test_threads_get_their_own_replies(factory: vq.MessageFactory, topic: str) -> None:
    """The answering program is another factory's; a message that is no request is left alone."""
    answers = factory.create_producer()

    def listen(message: vq.Message) -> None:
        if message.reply_to is not None and message.content != b"silence":
            answers.reply(message, message.content.upper(), {"key": str(message.key)})

    config = vq.ConsumerConfig(group="answers", mode="concurrent", workers=4)
    with factory.create_consumer(config) as consumer:
        consumer.subscribe(topic, 1 << 20, listen).start()
        with factory.create_producer() as producer:
            producer.send_sync(vq.Message(topic, b"no request"))
            producer.request(vq.Message(topic, b"first"), WAIT_S)
            with concurrent.futures.ThreadPoolExecutor(8) as threads:
                asked = [vq.Message(topic, b"m%d" % n, key=n) for n in range(40)]
                got = list(threads.map(producer.request, asked, itertools.repeat(WAIT_S)))
            assert [(each.content, (each.headers or {})["key"]) for each in got] == [
                (b"M%d" % n, str(n)) for n in range(40)
            ]
            with pytest.raises(TimedOut, match="it is stored at"):
                producer.request(vq.Message(topic, b"silence"), 0.2)
            counts = producer.metrics().requests
            assert (counts.answered, counts.unanswered, counts.waiting) == (41, 1, 0)
        with pytest.raises(InvalidState):
            producer.request(vq.Message(topic, b"closed"))


def test_a_producer_that_closes_ends_the_wait_of_its_threads(
    factory: vq.MessageFactory, topic: str
) -> None:
    producer = factory.create_producer()
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        asked = threads.submit(producer.request, vq.Message(topic, b"x"), WAIT_S)
        block_until(lambda: producer.metrics().requests.waiting)
        producer.close()
        with pytest.raises(InvalidState, match="closed"):
            asked.result(WAIT_S)
