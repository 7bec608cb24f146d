"""The blocking API: ``MessageFactory``, ``MessageProducer``, ``MessageConsumer``.

These classes are thin: the cores on the loop do the work. A factory owns one session with
ZooKeeper, one connection per broker and one loop thread; its producers and consumers share them.
Any thread may call all methods.
"""

from vq.blocking.consumer import MessageConsumer as MessageConsumer
from vq.blocking.factory import MessageFactory as MessageFactory
from vq.blocking.producer import MessageProducer as MessageProducer

__all__ = ["MessageConsumer", "MessageFactory", "MessageProducer"]
