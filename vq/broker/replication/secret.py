"""What this broker knows of the cluster's secret: to prove itself, and to check others' proofs.

The secret is read, or made, at the start. Brokers know each other by it also while ZooKeeper is
away. After a wrong proof, here or at a peer, it is read again: an operator may have changed it.
"""

from random import Random
from typing import Final

from vq.broker.base.tasks import Tasks
from vq.clock import Clock
from vq.coordination.brokers.secret import cluster_secret
from vq.coordination.tree.coordinator import Coordinator
from vq.errors import AuthenticationFailed, CoordinationError
from vq.log_lines import get_logger
from vq.remoting.broker_connection import BrokerConnection
from vq.remoting.membership import NONCE_BYTES, Principal, Proving

logger = get_logger(__name__)

PROVE_TIMEOUT_S: Final = 5.0
#: Wrong proofs have the secret read again at most once in this time: anybody can send them.
READ_AGAIN_S: Final = 5.0


class KnownSecret:
    """See the module's text. Loop-bound.

    Args:
        coordinator: A started coordinator, when ``start`` is called.
        clock: For the age of a challenge.
        tasks: Of the node.
        rng: Its bytes can be foreseen by nobody.
        asker: The names of this node.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        clock: Clock,
        tasks: Tasks,
        rng: Random,
        asker: Principal,
    ) -> None:
        self._coordinator = coordinator
        self._now = clock.monotonic
        self._tasks = tasks
        self._rng = rng
        self._asker = asker
        self._secret = b""
        self._read_at = 0.0

    @property
    def proving(self) -> Proving:
        """What the connections of this broker need."""
        return Proving(
            secret=lambda: self._secret, nonce=self._nonce, now=self._now, failed=self._doubt
        )

    async def start(self) -> None:
        """Read the secret, or make it.

        Raises:
            CoordinationError: ZooKeeper did not answer, or has something else at its place.
        """
        self._secret = await cluster_secret(self._coordinator, self._rng.randbytes)
        self._read_at = self._now()

    async def prove(self, connection: BrokerConnection) -> None:
        """Show a broker that this node belongs to the cluster, and see that it does.

        Raises:
            AuthenticationFailed: One of both knows another secret; the connection has ended.
            VqError: See ``BrokerConnection.prove``.
        """
        try:
            await connection.prove(
                self._secret, self._asker, self._nonce(), timeout=PROVE_TIMEOUT_S
            )
        except AuthenticationFailed:
            self._doubt()
            raise

    def _nonce(self) -> bytes:
        return self._rng.randbytes(NONCE_BYTES)

    def _doubt(self) -> None:
        """Read the secret again soon, unless that was done a moment ago."""
        if self._now() - self._read_at > READ_AGAIN_S:
            self._read_at = self._now()
            self._tasks.start(self._read_again())

    async def _read_again(self) -> None:
        try:
            secret = await cluster_secret(self._coordinator, self._rng.randbytes)
        except CoordinationError as error:
            logger.info("secret of the cluster cannot be read, keeping the last one", error=error)
            return
        if secret != self._secret:
            self._secret = secret
            logger.info("the cluster has another secret now, taking it")
