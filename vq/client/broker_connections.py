"""A client's connections to brokers: one for each address, made when it is asked for.

A failed attempt is followed by pauses that grow, until a master's change asks to try at once.
Loop-bound; ``unreachable`` may be read by any thread.
"""

import asyncio
import contextvars
import logging
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from vq.backoff import Backoff
from vq.client.config import MessageFactoryConfig
from vq.client.future import report
from vq.errors import ConnectionCut, NotAuthenticated
from vq.log_lines import get_logger
from vq.model import Address
from vq.remoting import broker_connection as connections
from vq.remoting.broker_connection import BrokerConnection
from vq.remoting.login import Login
from vq.remoting.transport import Network
from vq.tasks import begin_task

logger = get_logger(__name__)
RECONNECT = Backoff(first_s=0.1, most_s=1.0, jitter=0.5)
#: After a refusal: it stays until somebody changes the user, and brokers count such attempts.
_REFUSED = Backoff(first_s=1.0, most_s=60.0, jitter=0.5)


class ConnectFailures(NamedTuple):
    """Consecutive failures to connect to one broker, and the cause of the last one.

    Attributes:
        attempts: How many.
        cause: Of the last one.
        refusal: The broker does not take this client at all; None: that was not why.
        again_at: Time of the loop before which no other attempt is made after a refusal.
    """

    attempts: int
    cause: str
    refusal: NotAuthenticated | None = None
    again_at: float = 0.0


class BrokerConnections:
    """The open connections, the attempts under way, and the failures of the last attempts.

    Attributes:
        unreachable: Brokers to which the last attempt to connect failed. A cut connection is no
            failed attempt.
    """

    def __init__(
        self,
        config: MessageFactoryConfig,
        network: Network,
        rng: random.Random,
        *,
        login: Login,
        prove: Callable[[BrokerConnection], Awaitable[None]],
        on_change: Callable[[], None],
        context: contextvars.Context | None = None,
    ) -> None:
        self._context = context  # a connection, which many use, has a copy of it
        self._config = config
        self._network = network
        self._rng = rng
        self._login = login
        self._prove = prove  # that this is a member of the cluster
        self._on_change = on_change  # an attempt or a connection has ended
        self._connections: dict[Address, BrokerConnection] = {}
        self._connecting: dict[Address, asyncio.Task[BrokerConnection]] = {}
        self._pauses: dict[Address, asyncio.Event] = {}  # before the next try; set: try now
        self.unreachable: dict[Address, ConnectFailures] = {}

    def live(self, address: Address) -> BrokerConnection | None:
        """Return the open connection to ``address``; None: there is none."""
        return self._connections.get(address)

    def try_now(self, addresses: Iterable[Address]) -> None:
        """Forget failures of these brokers, and let attempts that pause go on."""
        for address in addresses:
            self.unreachable.pop(address, None)
            if address in self._pauses:
                self._pauses[address].set()

    def attempts(self) -> list[asyncio.Task[BrokerConnection]]:
        """Return the attempts under way."""
        return list(self._connecting.values())

    def close(self) -> None:
        """Close every open connection."""
        for connection in list(self._connections.values()):
            connection.close()

    def begin(self, address: Address) -> asyncio.Task[BrokerConnection]:
        """Return the attempt to connect that is under way; if there is none, begin one."""
        task = self._connecting.get(address)
        if task is None:
            task = begin_task(self._connect(address), self._context)
            self._connecting[address] = task
            task.add_done_callback(lambda done: self._ended(address, done))
        return task

    async def _connect(self, address: Address) -> BrokerConnection:
        failures = self.unreachable.get(address)
        if failures is not None:
            now = asyncio.get_running_loop().time()
            pause_s = RECONNECT.pause_s(failures.attempts, self._rng)
            if failures.refusal is not None:
                pause_s = max(0.0, failures.again_at - now)
            pause = self._pauses[address] = asyncio.Event()
            try:
                async with asyncio.timeout(pause_s):
                    await pause.wait()
            except TimeoutError:
                pass
            finally:
                del self._pauses[address]
        connection = await self.open(address, self._lost)
        if connection.closed:
            raise ConnectionCut(f"{address} closed the connection at once")
        self._connections[address] = connection
        return connection

    async def open(
        self,
        address: Address,
        on_close: Callable[[BrokerConnection], None] = lambda _: None,
        *,
        login: Login | None = None,
    ) -> BrokerConnection:
        """Return a connection that belongs to the caller alone, who closes it.

        Args:
            address: Of the broker.
            on_close: Called at its end.
            login: Who this is; None: the same as for all other connections.
        """
        connection = await connections.connect(
            self._network,
            address,
            client_id=self._config.client_id,
            cluster=self._config.cluster,
            timeout=self._config.connect_timeout_s,
            on_close=on_close,
            report=report,
            login=login or self._login,
        )
        if connection.must_prove:
            try:
                await self._prove(connection)
            except BaseException:
                connection.close()
                raise
        return connection

    def refusal(self, address: Address) -> NotAuthenticated | None:
        """Return why a broker does not take this client, as long as no other attempt is due."""
        failures = self.unreachable.get(address)
        if failures is None or asyncio.get_running_loop().time() >= failures.again_at:
            return None
        return failures.refusal

    def _ended(self, address: Address, task: asyncio.Task[BrokerConnection]) -> None:
        self._connecting.pop(address, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            if self.unreachable.pop(address, None) is not None:
                logger.warning("reconnected to a broker", broker=address)
        else:
            attempts, cause, *_ = self.unreachable.get(address, ConnectFailures(0, ""))
            refusal, again_at = None, 0.0
            if isinstance(error, NotAuthenticated):
                refusal = error
                pause_s = _REFUSED.pause_s(attempts + 1, self._rng)
                again_at = asyncio.get_running_loop().time() + pause_s
            self.unreachable[address] = ConnectFailures(attempts + 1, str(error), refusal, again_at)
            logger.log(
                logging.DEBUG if cause == str(error) else logging.WARNING,  # once for each cause
                "cannot connect to a broker, trying again",
                broker=address,
                error=error,
            )
        self._on_change()

    def _lost(self, connection: BrokerConnection) -> None:
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]
        self._on_change()
