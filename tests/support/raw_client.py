"""A tiny blocking client that speaks the protocol and nothing more, for tests of the broker alone.

It has no retries, no routes and no threads: what the broker answers is what the test sees.
"""

import socket
import ssl
from collections.abc import Sequence
from typing import Any

import google_crc32c

from vq.errors import VqError
from vq.remoting import wire_pb2 as wire
from vq.remoting.connection import ClientConnection, Closing, Opened, Reply
from vq.remoting.format import Command
from vq.remoting.messages import decode_reply, encode_header
from vq.store.records.record import encode_record
from vq.testing.waiting import PROCESSES_WAIT_S


class RawClient:
    """One connection to one broker.

    Args:
        address: The address of the broker.
        hello: Say HELLO at once.
        timeout_s: No call waits longer for a byte.
        context: Of TLS; None: plain TCP.
        source: The address that it connects from; "": the system's choice.
    """

    def __init__(
        self,
        address: tuple[str, int],
        *,
        hello: bool = True,
        timeout_s: float = PROCESSES_WAIT_S,
        context: ssl.SSLContext | None = None,
        source: str = "",
    ) -> None:
        self.sock = socket.create_connection(
            address, timeout=timeout_s, source_address=(source, 0) if source else None
        )
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            self.sock = context.wrap_socket(self.sock, server_hostname=address[0])
        self.connection = ClientConnection()
        self.replies: dict[int, Reply] = {}
        self.closing: VqError | None = None
        self.hello: wire.HelloResponse | None = None
        if hello:
            self.sock.sendall(b"".join(self.connection.hello(client_id="raw")))
            while self.hello is None:
                self._receive()

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self.sock.close()

    def send(self, command: Command, message: Any, body: bytes = b"") -> int:
        """Send a request without waiting; returns its correlation id."""
        context: list[int] = []
        header = encode_header(command, message)
        correlation_id, buffers = self.connection.request(command, header, body, context=context)
        context.append(correlation_id)
        self.sock.sendall(b"".join(bytes(each) for each in buffers))
        return correlation_id

    def wait(self, correlation_id: int) -> tuple[Any, bytes]:
        """Return header and body of a reply, or raise the error it carries."""
        while correlation_id not in self.replies:
            self._receive()
        frame = self.replies.pop(correlation_id).frame
        return decode_reply(frame), frame.body

    def call(self, command: Command, message: Any, body: bytes = b"") -> tuple[Any, bytes]:
        """Send a request and wait for its reply."""
        return self.wait(self.send(command, message, body))

    def _receive(self) -> None:
        data = self.sock.recv(1 << 20)
        if not data:
            raise self.closing or ConnectionError("the broker closed the connection")
        for event in self.connection.receive_data(data):
            if isinstance(event, Opened):
                self.hello = event.hello  # type: ignore[assignment]
            elif isinstance(event, Reply):
                self.replies[event.context[0]] = event
            elif isinstance(event, Closing):
                self.closing = event.error

    # The commands -------------------------------------------------------------------------------
    def put(self, topic: str, partition: int, records: Sequence[bytes], **fields: Any) -> Any:
        """PUT a batch of encoded records; returns the response header."""
        return self.wait(self.send_put(topic, partition, records, **fields))[0]

    def send_put(self, topic: str, partition: int, records: Sequence[bytes], **fields: Any) -> int:
        """Send a PUT without waiting."""
        body = b"".join(records)
        values: dict[str, Any] = {
            "topic": topic,
            "partition": partition,
            "record_count": len(records),
            "crc": google_crc32c.value(body),
            **fields,
        }
        return self.send(Command.PUT, wire.PutRequest(**values), body)

    def send_get(self, topic: str, partition: int, offset: int, **fields: Any) -> int:
        """Send a GET without waiting."""
        values = {"max_bytes": 1 << 20, **fields}
        request = wire.GetRequest(topic=topic, partition=partition, offset=offset, **values)
        return self.send(Command.GET, request)

    def get(self, topic: str, partition: int, offset: int, **fields: Any) -> tuple[Any, bytes]:
        """GET bytes; returns response header and body."""
        return self.wait(self.send_get(topic, partition, offset, **fields))

    def offsets(self, topic: str, partition: int, **fields: Any) -> Any:
        """OFFSETS; returns the response header."""
        request = wire.OffsetsRequest(topic=topic, partition=partition, **fields)
        return self.call(Command.OFFSETS, request)[0]

    def status(self, *, with_partitions: bool = False) -> Any:
        """STATUS; returns the response header."""
        return self.call(Command.STATUS, wire.StatusRequest(with_partitions=with_partitions))[0]


def message(payload: bytes, id: int = 1, tag: str | None = None) -> bytes:
    """Return one encoded record."""
    return encode_record(id, payload, tag.encode() if tag is not None else None)
