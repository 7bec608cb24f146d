"""A blocking connection to one broker, for threads that wait for their answer."""

import ssl
import time

from vq.errors import Unreachable, VqError
from vq.model import Address
from vq.remoting.broker_connection import AT_ONCE_BYTES, LIBRARY
from vq.remoting.connection import (
    Challenged,
    ClientConnection,
    Closing,
    ConnectionState,
    Opened,
    Reply,
)
from vq.remoting.frames import Buffer, Frame
from vq.remoting.login import ANONYMOUS_LOGIN, Login
from vq.remoting.messages import delay_of
from vq.remoting.transport import BlockingStream, Network
from vq.security.tls import closed_early, why_no_tls
from vq.waits import Latch


class BlockingConnection:
    """A stream to one broker, used by one thread at a time; it connects at its first use.

    Args:
        network: Opens the stream.
        address: Address of the broker.
        client_id: Sent in HELLO.
        cluster: Sent in HELLO; a broker of another cluster refuses.
        timeout: Bound of one attempt to connect, HELLO and its proofs included, in seconds.
        login: Who the client is.
    """

    def __init__(
        self,
        network: Network,
        address: Address,
        *,
        client_id: str,
        cluster: str,
        timeout: float,
        login: Login = ANONYMOUS_LOGIN,
    ) -> None:
        self._network = network
        self._address = address
        self._client_id = client_id
        self._cluster = cluster
        self._timeout = timeout
        self._login = login
        self._stream: BlockingStream | None = None
        self._state = ClientConnection(login)
        self._rests_until = 0.0
        self._interrupted = Latch()

    def exchange(self, command: int, header: bytes, body: Buffer, timeout: float) -> Frame:
        """Send one request and return its reply, within ``timeout`` seconds, connecting included.

        After a reply that says that the user's quota is used up, the next request waits here.

        Raises:
            Unreachable: No connection could be opened, or it does not accept the request; nothing
                was sent.
            OSError: The connection or the time ended; the connection is closed now.
            VqError: The broker sent an invalid reply; the connection is closed now.
        """
        deadline = time.monotonic() + timeout
        try:
            if self._stream is None:
                self._stream = self._connect(min(deadline, time.monotonic() + self._timeout))
            rest_s = self._rests_until - time.monotonic()
            if rest_s > 0 and (rest_s >= timeout or self._interrupted.wait(rest_s)):
                raise Unreachable(
                    f"not sent to {self._address}: the user's quota is used up for {rest_s:.1f} s"
                )
            try:
                correlation_id, out = self._state.request(command, header, body)
            except VqError as error:
                raise Unreachable(f"not sent to {self._address}: {error}") from error
            for each in out if len(body) >= AT_ONCE_BYTES else (b"".join(out),):
                self._stream.send(each, deadline)
            while True:
                for event in self._receive(self._stream, deadline):
                    assert isinstance(event, Reply)
                    if event.frame.flags or event.frame.status:
                        self._rests_until = time.monotonic() + delay_of(event.frame)
                    if event.frame.correlation_id == correlation_id:
                        return event.frame  # other replies belong to interrupted exchanges
        except BaseException:
            self.close()
            raise

    def _connect(self, deadline: float) -> BlockingStream:
        stream: BlockingStream | None = None
        try:
            stream = self._network.open_stream(self._address, deadline)
            self._state = ClientConnection(self._login)
            hello = self._state.hello(
                client_id=self._client_id, library=LIBRARY, cluster=self._cluster
            )
            stream.send(b"".join(hello), deadline)
            while self._state.state is not ConnectionState.OPEN:
                for event in self._receive(stream, deadline):
                    if isinstance(event, Challenged):
                        keys = self._login.keys(event.salt, event.iterations)
                        stream.send(b"".join(self._state.authenticate(keys)), deadline)
        except BaseException as error:
            if stream is not None:
                stream.close()
            if isinstance(error, Unreachable):
                raise  # it names the address already
            if isinstance(error, OSError | VqError):
                why = why_no_tls(error) if isinstance(error, ssl.SSLError) else str(error)
                raise Unreachable(f"cannot connect to {self._address}: {why}") from error
            raise
        return stream

    def _receive(
        self, stream: BlockingStream, deadline: float
    ) -> list[Opened | Challenged | Reply]:
        """Wait for the next bytes and return their events."""
        data = stream.receive(deadline)
        if not data:
            raise ConnectionResetError(
                f"{self._address} closed the connection"
                if self._state.state is ConnectionState.OPEN
                else closed_early(encrypted=stream.encrypted)
            )
        events: list[Opened | Challenged | Reply] = []
        for event in self._state.receive_data(data):
            if isinstance(event, Closing):
                raise event.error
            events.append(event)
        return events

    def interrupt(self) -> None:
        """Make another thread's ``exchange`` end soon."""
        self._interrupted.set()
        stream = self._stream
        if stream is not None:
            stream.interrupt()

    def close(self) -> None:
        """Close the connection; the next use opens a new one."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None
