"""The transactional id of a producer: taken once, and lost to whoever takes it later."""

import asyncio

from vq.client.asking import ask_master
from vq.client.cluster import ClusterClient
from vq.client.config import ProducerConfig
from vq.client.producer.transaction.journal_choice import choose_journal
from vq.errors import ProducerFenced
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import FenceRequest


class TransactionalId:
    """See the module. ``take`` is loop-bound.

    Attributes:
        cluster, config: Those of the producer; ``config.transactional_id`` may be None.
        epoch: Of the id; 0: it was not taken yet.
    """

    def __init__(self, cluster: ClusterClient, config: ProducerConfig) -> None:
        self.cluster = cluster
        self.config = config
        self.epoch = 0
        self._taking = asyncio.Lock()
        self._fenced: ProducerFenced | None = None

    @property
    def is_to_take(self) -> bool:
        """Whether there is one, and it is to be taken before the first transaction."""
        return self.config.transactional_id is not None and not self.epoch

    async def take(self) -> None:
        """Take it; whoever had it loses it.

        Raises:
            VqError: That cannot be done now.
        """
        async with self._taking:  # one task takes it for all that begin their first ones
            if self.is_to_take:
                await self._take()

    async def _take(self) -> None:
        client = self.config.transactional_id
        assert client is not None
        await self.cluster.lease_slot()
        partition = await choose_journal(self.cluster, None, None, client)
        request = FenceRequest(topic=partition.topic, partition=partition.partition, client=client)
        answer = await ask_master(
            self.cluster,
            partition,
            Command.FENCE,
            request,
            deadline=self.cluster.clock.monotonic() + self.config.send_timeout_s,
            what="whether the transactional id was taken",
        )
        self.epoch = answer.client_epoch

    def fence(self, error: ProducerFenced) -> None:
        """Refuse all further transactions: another producer has the id."""
        self._fenced = error

    def check(self) -> None:
        """Return if a transaction may begin.

        Raises:
            ProducerFenced: Another producer has the id.
        """
        if self._fenced is not None:
            raise self._fenced
