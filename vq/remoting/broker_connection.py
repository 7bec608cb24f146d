"""A connection to one broker on the event loop: sends requests and matches replies to them.

Requests are pipelined, and replies may come in any order. The hot path passes encoded headers and a
callback to ``send``; other code uses ``request``. One ``writelines`` sends all requests of one loop
iteration. A large body is sent at once, so that the broker handles one batch while the client
encodes the next one.

A broker may answer that the user's quota is used up, and for how long: requests are then kept here
for so long, for all who use the connection. Their time-outs go on meanwhile.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, cast

from vq.errors import AuthenticationFailed, ConnectionCut, TimedOut, Unreachable, VqError
from vq.log_lines import get_logger
from vq.model import Address
from vq.remoting import messages
from vq.remoting import wire_pb2 as wire
from vq.remoting.connection import (
    Challenged,
    ClientConnection,
    Closing,
    ConnectionState,
    Opened,
    Reply,
)
from vq.remoting.format import COMMANDS, Command, Header
from vq.remoting.frames import Buffer, Frame
from vq.remoting.login import ANONYMOUS_LOGIN, Login
from vq.remoting.membership import Exchange, Principal, Side, is_proof, proof
from vq.remoting.messages import delay_of
from vq.remoting.receiving import FrameProtocol
from vq.remoting.transport import Network, tune
from vq.security.scram import ScramKeys
from vq.security.tls import closed_early, why_no_tls
from vq.version import __version__

logger = get_logger(__name__)
LIBRARY = f"vq-python {__version__}"
#: A request with a body keeps the next one back for so long at most while a quota is used up, and
#: before the first answer: it may wait for something else, such as other nodes.
PACED_S: Final = 9.0
FIRST_ANSWER_S: Final = 0.5
#: Before the first answer a body of up to this size is not kept back.
SMALL_BYTES: Final = 4 << 10
#: A body of at least this size is sent at once, with a system call of its own.
AT_ONCE_BYTES: Final = 64 << 10

OnReply = Callable[[Frame | None], None]
"""Called once per request: with the reply, or with None if the connection ended before it."""


Report = Callable[[str, BaseException], None]
"""Called with the name of a callback and the exception that it raised."""


def log_raised(what: str, error: BaseException) -> None:
    """Log the exception of a callback; see ``Report``."""
    logger.error("callback raised", callback=what, exc_info=error)


class BrokerConnection(FrameProtocol):
    """A connection after HELLO and what follows it. Loop-bound; ``connect`` makes it.

    Attributes:
        proved: Both ends have shown that they know the cluster's secret.
    """

    def __init__(
        self,
        address: Address,
        *,
        client_id: str,
        cluster: str,
        on_close: "Callable[[BrokerConnection], None]",
        report: Report,
        login: Login = ANONYMOUS_LOGIN,
    ) -> None:
        self.address = address
        self._report = report
        self.closed = False
        self.proved = False
        self._loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[Header] = self._loop.create_future()
        self._client_id = client_id
        self._cluster = cluster
        self._on_close = on_close
        self._login = login
        self._state = ClientConnection(login)
        self.parser = self._state.parser
        self._out: list[Buffer] = []
        self._answering = False  # callbacks of replies are called
        self._afterwards: list[Callable[[], None]] = []
        self._rest: asyncio.TimerHandle | None = None  # until its end nothing is sent
        #: Requests with a body that have no answer: when they were sent.
        self._bodies: dict[int, float] = {}
        #: The last answer to one told that the quota is used up; None: there was no answer yet.
        self._is_paced: bool | None = None
        self._transport: asyncio.Transport | None = None

    # FrameProtocol ----------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send HELLO; called by the transport."""
        self._transport = cast("asyncio.Transport", transport)
        tune(transport)
        self._transport.writelines(
            self._state.hello(client_id=self._client_id, library=LIBRARY, cluster=self._cluster)
        )

    def data_received(self, data: bytes) -> None:
        """Pass each whole reply to the callback of its request; then send what these asked for."""
        self._take(self._state.receive_data(data))

    def room_filled(self, size: int) -> None:
        """See ``FrameProtocol``."""
        self._take(self._state.room_filled(size))

    def _take(self, events: Iterable[Opened | Challenged | Reply | Closing]) -> None:
        self._answering = True
        try:
            for event in events:
                if isinstance(event, Reply):
                    self._note_quota(event.frame)
                    if event.context is not None:
                        self._call_back(event.context, event.frame)
                elif isinstance(event, Opened):
                    self._open(event.hello)
                elif isinstance(event, Challenged):
                    self._challenged(event)
                elif isinstance(event, Closing):
                    self._open(event.error)
                    self.close()
        finally:
            afterwards, self._afterwards = self._afterwards, []
            for each in afterwards:
                self._call_back(each)
            self._answering = False
            if self._out:
                self.flush()

    def _note_quota(self, frame: Frame) -> None:
        """Note what an answer tells of the user's quota."""
        delay_s = delay_of(frame) if frame.flags or frame.status else 0.0
        if delay_s:
            self._obey(delay_s)
        has_body = self._bodies.pop(frame.correlation_id, None) is not None
        if has_body and (delay_s or not frame.status):
            self._is_paced = delay_s > 0.0

    def _obey(self, delay_s: float) -> None:
        """Send nothing for so long: the user's quota is used up."""
        if self.closed:
            return
        ends = self._loop.time() + delay_s
        if self._rest is not None:
            if self._rest.when() >= ends:
                return
            self._rest.cancel()
        self._rest = self._loop.call_at(ends, self._end_rest)

    def _end_rest(self) -> None:
        self._rest = None
        self.flush()

    @property
    def takes_small(self) -> bool:
        """Whether a request with a small body may be sent now, whatever ``waits_s`` says.

        So it is before the first answer: if a quota turns out to be used up, what is refused is
        little.
        """
        return self._is_paced is None and self._rest is None

    def waits_s(self) -> float:
        """Return for how many seconds a request with a large body should not be sent; 0: now.

        While the quota of the user is used up they go one at a time, each behind the answer to the
        one before, which may come sooner: of several at once the broker lets one wait and refuses
        the others, and reading them takes as long as they would have. Whether a quota is used up,
        the first answer tells; until then see ``takes_small``, too.
        """
        if self._is_paced is False:
            return 0.0
        now = self._loop.time()
        waits_s = 0.0 if self._rest is None else self._rest.when() - now
        if self._bodies:
            most_s = PACED_S if self._is_paced else FIRST_ANSWER_S
            waits_s = max(waits_s, next(reversed(self._bodies.values())) + most_s - now)
        return max(0.0, waits_s)

    def _challenged(self, event: Challenged) -> None:
        """Prove the password; its keys are derived on a thread, once for each salt."""
        keys = self._login.known_keys(event.salt, event.iterations)
        if keys is not None:
            self._authenticate(keys)
            return
        pool = ThreadPoolExecutor(1, "vq-keys")
        derived = self._loop.run_in_executor(pool, self._login.keys, event.salt, event.iterations)
        derived.add_done_callback(self._derived)
        pool.shutdown(wait=False)  # the thread ends with its work

    def _derived(self, done: asyncio.Future[ScramKeys]) -> None:
        if not done.cancelled():
            self._authenticate(done.result())

    def _authenticate(self, keys: ScramKeys) -> None:
        if self._transport is not None and not self.closed:
            self._transport.writelines(self._state.authenticate(keys))

    def _call_back(self, callback: Callable[..., None], *arguments: object) -> None:
        """Call the callback of one request, or one of ``afterwards``; report what it raises.

        A signal handler, or the application's logging, may raise in it. The other callbacks must
        still be called: each gets its reply only here.
        """
        try:
            callback(*arguments)
        except BaseException as error:  # noqa: BLE001 - SystemExit and the like are raised later
            with contextlib.suppress(Exception):  # the application's logging may raise
                self._report(f"{self.address}: handling a reply", error)

    def afterwards(self, call: Callable[[], None]) -> None:
        """Have something called once the replies that came together are handled.

        What it sends leaves with what their callbacks have sent. Outside of them it is called soon.
        """
        if self._answering:
            self._afterwards.append(call)
        else:
            self._loop.call_soon(call)

    def _open(self, outcome: Header | VqError) -> None:
        if self.opened.done():
            return
        if isinstance(outcome, VqError):
            self.opened.set_exception(outcome)
            self.opened.exception()  # mark it as retrieved: ``connect`` may wait no longer
        else:
            self.opened.set_result(outcome)

    def connection_lost(self, exc: Exception | None) -> None:
        """Call the callbacks of all open requests with None."""
        self.closed = True
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None
        if not self.opened.done():
            self._open(ConnectionCut(f"{self.address}: {self._why_closed(exc)}"))
        self._transport = None
        contexts = self._state.abandon()
        try:
            self._on_close(self)
        finally:
            for on_reply in contexts:
                if on_reply is not None:
                    self._call_back(on_reply, None)

    def _why_closed(self, exc: Exception | None) -> str:
        """Return why the connection ended before HELLO was answered."""
        if isinstance(exc, ssl.SSLError):
            return why_no_tls(exc)
        if exc is not None:
            return f"it closed the connection: {exc}"
        transport = self._transport
        encrypted = transport is not None and transport.get_extra_info("sslcontext") is not None
        return closed_early(encrypted=encrypted)

    # Requests ---------------------------------------------------------------------------------
    def send(
        self,
        command: int,
        header: bytes,
        body: Buffer,
        on_reply: OnReply,
        *,
        at_once: bool = False,
    ) -> int:
        """Send a request by the end of this loop iteration, or ``at_once``; return its number.

        One that is sent in the callback of a reply leaves once those that came with it are handled.

        ``body`` must not change before the reply. The number is the correlation id.

        Raises:
            ConnectionCut: The connection has ended; nothing was sent.
            Busy: The broker allows no more waiting requests; nothing was sent.
        """
        if self.closed:
            raise ConnectionCut(f"the connection to {self.address} has ended")
        correlation_id, buffers = self._state.request(command, header, body, context=on_reply)
        if len(body):
            self._bodies[correlation_id] = self._loop.time()
        at_once = at_once or len(body) >= AT_ONCE_BYTES
        if not (at_once or self._out or self._answering):
            self._loop.call_soon(self.flush)
        self._out += buffers
        if at_once:
            self.flush()
        return correlation_id

    def flush(self) -> None:
        """Pass waiting requests to the network now, not at the end of this loop iteration.

        While the user's quota is used up they go on waiting.
        """
        if self._rest is not None:
            return
        out, self._out = self._out, []
        if out and self._transport is not None and not self.closed:
            self._transport.writelines(out)

    async def request(
        self, command: int, message: Any, body: Buffer = b"", *, timeout: float
    ) -> tuple[Any, bytes]:
        """Send a request and return ``(response header, body)``.

        Raises:
            VqError: The broker's error.
            TimedOut: There is no reply within ``timeout`` seconds.
            ConnectionCut: The connection ended before the reply.
        """
        reply: asyncio.Future[Frame | None] = self._loop.create_future()

        def on_reply(frame: Frame | None) -> None:
            if not reply.done():
                reply.set_result(frame)

        correlation_id = self.send(
            command, messages.encode_header(command, message, 0), body, on_reply
        )
        try:
            async with asyncio.timeout(timeout):
                frame = await reply
        except TimeoutError:
            self._state.forget(correlation_id)
            self._bodies.pop(correlation_id, None)
            raise TimedOut(
                f"{self.address} did not answer {COMMANDS[command].name} within {timeout:.3g} s"
            ) from None
        if frame is None:
            raise ConnectionCut(f"the connection to {self.address} ended before the answer")
        return messages.decode_reply(frame), frame.body

    async def prove(self, secret: bytes, asker: Principal, nonce: bytes, *, timeout: float) -> None:
        """Show the broker that this end knows the cluster's secret, and see that it knows it.

        Once a connection; see ``vq.remoting.membership``.

        Raises:
            AuthenticationFailed: One end does not know it; the connection ends.
            VqError: See ``request``.
        """
        deadline = self._loop.time() + timeout
        hello: Any = self.opened.result()
        first = wire.ProveRequest(group=asker.group, node=asker.node, nonce=nonce)
        challenge, _ = await self.request(Command.PROVE, first, timeout=timeout)
        exchange = Exchange(
            self._cluster or hello.cluster,
            asker,
            Principal(hello.group, hello.node),
            nonce,
            challenge.nonce,
        )
        second = wire.ProveRequest(proof=proof(secret, Side.ASKER, exchange))
        left = max(0.0, deadline - self._loop.time())
        answer, _ = await self.request(Command.PROVE, second, timeout=left)
        if not is_proof(answer.proof, secret, Side.BROKER, exchange):
            self.close()
            raise AuthenticationFailed(f"{self.address} does not know the cluster's secret")
        self._state.proved()
        self.proved = True

    @property
    def must_prove(self) -> bool:
        """The broker takes no anonymous clients, so it carries out nothing before ``prove``."""
        return self._state.state is ConnectionState.AUTHENTICATING

    def close(self) -> None:
        """Close the connection; the callbacks of open requests are called soon."""
        self.closed = True  # refuse new requests from now on
        if self._transport is not None:
            self._transport.abort()


async def connect(
    network: Network,
    address: Address,
    *,
    client_id: str,
    cluster: str,
    timeout: float,
    on_close: Callable[[BrokerConnection], None],
    report: Report = log_raised,
    login: Login = ANONYMOUS_LOGIN,
) -> BrokerConnection:
    """Connect, exchange HELLO and prove who this is within ``timeout`` seconds.

    ``report`` is called with each exception that the callback of a request raises.

    Raises:
        Unreachable: No process listens there, or there is no reply in time.
        ConnectionCut: The connection ended.
        NotAuthenticated: The broker does not take this client, or it is no broker of the cluster.
        VqError: The broker refused.
    """
    connection: BrokerConnection | None = None
    try:
        async with asyncio.timeout(timeout):
            _, connection = await network.connect(
                address,
                lambda: BrokerConnection(
                    address,
                    client_id=client_id,
                    cluster=cluster,
                    on_close=on_close,
                    report=report,
                    login=login,
                ),
            )
            await connection.opened
    except BaseException as error:
        if connection is not None:
            connection.close()
        if isinstance(error, TimeoutError):
            raise Unreachable(
                f"no connection to {address} within {timeout:g} s"
                if connection is None
                else f"{address} accepts connections and did not answer HELLO within {timeout:g} "
                "s: its process hangs or is stopped, or it is no broker"
            ) from None
        raise
    return connection
