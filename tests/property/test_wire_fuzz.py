"""Hostile bytes: whatever arrives, only ``ProtocolError`` and ``Refused`` come of it, and quickly.

Valid frames and headers are broken in many ways by a seeded generator and given to everything that
reads what strangers send. No input may take more than 50 ms of processor time or make the process
grow without bound. The short form runs a fixed seed; with ``VQ_LONG=1`` a new one for 15 minutes
per target. Every failure names what replays it:

    VQ_FUZZ_SEED=... VQ_FUZZ_ROUND=... pytest tests/property/test_wire_fuzz.py
"""

import random
import time

import pytest
from support.fuzz import Targets, check, child, input_s_max, mutated
from support.wire_samples import CORRELATION_ID, SAMPLES

from vq import limits
from vq.errors import ProtocolError, Refused, VqError
from vq.hessian import plain as hessian
from vq.remoting import messages
from vq.remoting import wire_pb2 as wire
from vq.remoting.connection import (
    ClientConnection,
    Closing,
    ConnectionState,
    Opened,
    Reply,
    Request,
    ServerConnection,
)
from vq.remoting.format import FLAG_HESSIAN, Command
from vq.remoting.frames import FrameParser, encode_frame
from vq.remoting.hello import KnownPeer, ServerIdentity, UserCheck, accept_anonymous
from vq.security.scram import ServerFirst


def _frame(command: Command, direction: str, flags: int) -> bytes:
    message, body = SAMPLES[command, direction]
    header = messages.encode_header(command, message, flags)
    return encode_frame(command, 0, CORRELATION_ID, flags, header, len(body)) + body


FLAGS = (0, FLAG_HESSIAN)
HELLO = _frame(Command.HELLO, "request", 0)
_OF_USER = wire.HelloRequest(
    version_min=1, version_max=1, mechanism="SCRAM-SHA-256", credentials=b"n,,n=anna,r=abc"
)
USERS_HELLO = encode_frame(Command.HELLO, 0, 1, 0, messages.encode_header(Command.HELLO, _OF_USER))
REQUESTS = [_frame(c, "request", f) for c in Command for f in FLAGS if c is not Command.HELLO]
RESPONSES = [_frame(c, "response", f) for c in Command for f in FLAGS if c is not Command.HELLO]
HEADERS = [
    messages.encode_header(command, sample.message, flags)
    for (command, _), sample in SAMPLES.items()
    for flags in FLAGS
]
#: Small inputs that ask for much: lengths, depths, chunks and types without end.
BOMBS = [
    b"\x57" * 3_000,
    b"\x79" * 3_000,
    b"H\x01a" * 2_000,
    b"\x57" + b"M\x01tZ" * 16_000,
    b"\x57" + b"\x70\x01t" * 21_000,
    b"R\x00\x00" * 21_000,
    b"A\x00\x00" * 21_000,
    b"XI\x7f\xff\xff\xff" + b"N" * 50_000,
    b"R\x52\x08" + "漢".encode() * 21_000,
    b"\x53\x55\x28" + b"\xed\xa0\xbd\xed\xb8\x80" * 10_900,
    b"\x53\xff\xff\xc3" + b"\x80" * 60_000,
    b"\x57" + (b"\x1f" + "漢".encode() * 31) * 690,
    b"H" + b"".join(b"\x05%05d\x90" % number for number in range(4_000)) + b"Z",
    b"\x0a\xff\xff\xff\xff\x0f",
    b"\x42\x00" * 30_000,
    b"\x7b" * 60_000,
]


def hostile_header(rng: random.Random) -> bytes:
    """A header that is wrong, or means much work."""
    if rng.random() < 0.05:
        return rng.choice(BOMBS)
    if rng.random() < 0.1:
        return rng.randbytes(rng.randrange(400))
    return mutated(rng, rng.choice(HEADERS), HEADERS)


def hostile_stream(rng: random.Random, frames: list[bytes]) -> bytes:
    """A few frames, among them such with hostile headers in good frames, and broken ones."""
    pieces = []
    for _ in range(rng.randint(1, 5)):
        kind = rng.random()
        if kind < 0.4:
            pieces.append(rng.choice(frames))
        elif kind < 0.7:
            command = rng.choice([*map(int, Command), 0, 33, 65_535])
            flags = rng.choice([0, 1, 1, rng.randrange(256)])
            header = hostile_header(rng)
            number = rng.choice([0, CORRELATION_ID, rng.getrandbits(32)])
            pieces.append(encode_frame(command, rng.choice([0, 0, 9]), number, flags, header))
        else:
            pieces.append(mutated(rng, rng.choice(frames), HEADERS))
    return b"".join(pieces)


def chunks(rng: random.Random, data: bytes) -> list[bytes]:
    """``data`` as it might arrive."""
    if rng.random() < 0.4:
        return [data]
    # Not thousands of tiny chunks: their number alone would take the time meant for one input.
    size = rng.choice([7, 20, 64] if len(data) < 5_000 else [1_000, 65_536])
    return [data[start : start + size] for start in range(0, len(data), size)]


def parse_frames(rng: random.Random, data: bytes) -> None:
    """FrameParser: frames or an error, and after an error always the same one."""
    parser = FrameParser(rng.choice([limits.FRAME_BYTES_MAX_BEFORE_HELLO, limits.FRAME_BYTES_MAX]))
    failure = None
    for chunk in chunks(rng, data):
        try:
            parser.feed(chunk)
        except (ProtocolError, Refused) as error:
            failure = error
            break
        assert parser.pending_bytes < parser.max_bytes
    if failure is not None:
        assert parser.failure is failure
        with pytest.raises(type(failure)):
            parser.feed(b"")


class _Challenge:
    """The broker's side of an exchange about a user that there is not."""

    def __init__(self, hello: wire.HelloRequest) -> None:
        self._step = ServerFirst(hello.credentials).challenge(None, b"s" * 32, "5" * 36)
        self.challenge = self._step.message

    def finish(self, data: bytes) -> tuple[KnownPeer, bytes]:
        self._step.finish(data)
        raise AssertionError("nobody knows a password of this user")


def _challenge(hello: wire.HelloRequest) -> UserCheck:
    return _Challenge(hello)


def serve(rng: random.Random, data: bytes) -> None:
    """ServerConnection: never raises, says why it closes, and answers only what waits."""
    identity = ServerIdentity(cluster="main", group="b1", node="n1")
    asks = rng.random() < 0.3
    server = ServerConnection(
        identity,
        authenticate=_challenge if asks else accept_anonymous,
        requests_max=rng.choice([1, 3, 1_024]),
    )
    hello = USERS_HELLO if asks else HELLO
    for chunk in chunks(rng, data if rng.random() < 0.2 else hello + data):
        events = server.receive_data(chunk)
        assert all(type(event) is not Closing for event in events[:-1])
        for event in events:
            is_open = server.state is ConnectionState.OPEN
            if isinstance(event, Request) and is_open and rng.random() < 0.7:
                assert server.reply_error(event.request_id, Refused("fuzz"))
            if isinstance(event, Closing):
                assert isinstance(event.error, ProtocolError | Refused)
                assert server.state is ConnectionState.CLOSED
        out = FrameParser().feed(b"".join(server.data_to_send()))
        for frame in out:
            if frame.status:
                assert isinstance(
                    messages.decode_error(frame.status, frame.header, frame.flags), VqError
                )


def consume(rng: random.Random, data: bytes) -> None:
    """ClientConnection: never raises, and gives no reply to a request that was not made."""
    client = ClientConnection()
    client.hello()
    hello = wire.HelloResponse(version=1, requests_in_flight_max=100)
    header = messages.encode_header(Command.HELLO, hello)
    if rng.random() < 0.8:
        (event,) = client.receive_data(encode_frame(Command.HELLO, 0, 1, 0, header))
        assert isinstance(event, Opened)
        opening = {Command.HELLO, Command.AUTHENTICATE}
        commands = [command for command in Command if command not in opening]
        waiting = {client.request(rng.choice(commands), b"", context=n)[0] for n in range(20)}
        assert CORRELATION_ID in waiting
    answered = []
    for chunk in chunks(rng, data):
        for event in client.receive_data(chunk):
            if isinstance(event, Reply):
                answered.append(event.context)
                try:
                    messages.decode_reply(event.frame)
                except VqError:
                    pass
    assert len(answered) == len(set(answered))


def decode_headers(rng: random.Random, data: bytes) -> None:
    """The decoders of headers, as any message there is."""
    decode = rng.choice([messages.decode_request, messages.decode_response])
    try:
        decode(rng.choice([*Command]), data, rng.choice(FLAGS))
    except (ProtocolError, Refused):
        pass


def decode_hessian(rng: random.Random, data: bytes) -> None:
    """The Hessian decoder alone."""
    try:
        hessian.decode(data)
    except ProtocolError:
        pass


TARGETS: Targets = {
    "frames": (parse_frames, lambda rng: hostile_stream(rng, REQUESTS + RESPONSES)),
    "server": (serve, lambda rng: hostile_stream(rng, REQUESTS)),
    "client": (consume, lambda rng: hostile_stream(rng, RESPONSES)),
    "headers": (decode_headers, hostile_header),
    "hessian": (decode_hessian, hostile_header),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_hostile_bytes_are_refused_quickly(name: str) -> None:
    """No other error, no slow input, no growth."""
    check(__file__, name)


@pytest.mark.parametrize("bomb", range(len(BOMBS)))
def test_small_inputs_that_ask_for_much_are_refused_quickly(bomb: int) -> None:
    """Each alone, so that a slow one has a name."""
    data = BOMBS[bomb]
    times = []
    for _ in range(2):
        begun = time.thread_time()
        decode_hessian(random.Random(0), data)
        decode_headers(random.Random(0), data)
        times.append(time.thread_time() - begun)
    assert min(times) <= 2 * input_s_max()


if __name__ == "__main__":
    child(TARGETS)
