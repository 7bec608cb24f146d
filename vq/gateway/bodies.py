"""Bodies of requests: each has a bound and a deadline, and all together have a bound."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from starlette.requests import ClientDisconnect, Request

from vq.gateway.problems import AtLimit, BodyRefused, BodyTooLarge, BodyTooSlow, WrongContentType
from vq.shown import shown

JSON: Final = "application/json"


class Bodies:
    """The bodies that are in memory: being read, or being sent. Loop-bound.

    Args:
        each_max: Bytes of one.
        all_max: Bytes of all that are in memory.
        timeout_s: One must be whole within this time.

    Attributes:
        held: Their bytes.
    """

    def __init__(self, each_max: int, all_max: int, timeout_s: float) -> None:
        self._each_max = each_max
        self._all_max = all_max
        self._timeout_s = timeout_s
        self.held = 0

    @contextlib.asynccontextmanager
    async def of(self, request: Request, most: int = 0) -> AsyncIterator[bytes]:
        """Provide the body of a request; it counts until the block ends.

        Args:
            request: Its body was not read.
            most: The most bytes it may have; 0: as for each.

        Raises:
            WrongContentType: It is compressed.
            BodyTooLarge: It has more.
            BodyTooSlow: It is not whole in time.
            BodyRefused: The client went away in the middle, or its length is no number.
            AtLimit: There is no room for it now.
        """
        most = most or self._each_max
        held = 0
        try:
            _check_encoding(request)
            expected = _length_of(request)
            if expected is not None and expected > most:
                raise _too_large(most)
            parts = []
            size = 0
            self._hold(expected or 0)
            held = expected or 0
            try:
                async with asyncio.timeout(self._timeout_s):
                    async for part in request.stream():
                        size += len(part)
                        if size > most:
                            raise _too_large(most)
                        if size > held:  # it did not say how long it is
                            self._hold(size - held)
                            held = size
                        parts.append(part)
            except TimeoutError as error:
                raise BodyTooSlow(f"the body was not whole within {self._timeout_s:g} s") from error
            except ClientDisconnect as error:
                raise BodyRefused("the connection ended inside the body") from error
            yield b"".join(parts)
        finally:
            self.held -= held

    def _hold(self, size: int) -> None:
        if self.held + size > self._all_max:
            raise AtLimit(
                f"bodies of {self.held} bytes are being sent, and all together may have "
                f"{self._all_max}: requests come faster than they are carried out"
            )
        self.held += size


def _check_encoding(request: Request) -> None:
    given = request.headers.get("content-encoding", "identity")
    if given.strip().lower() != "identity":
        raise WrongContentType(
            f"Content-Encoding is {shown(given)}, and bodies are taken as they are",
            hint="send the body without compression; `vq topic alter --compression` has messages "
            "compressed where they are stored",
        )


def _length_of(request: Request) -> int | None:
    given = request.headers.get("content-length")
    if given is None:
        return None
    if not (given.isascii() and given.isdigit() and len(given) <= 18):
        raise BodyRefused(f"Content-Length is {shown(given)}, not a number of bytes")
    return int(given)


def _too_large(most: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body has more bytes than are taken: at most {most}")


def check_json(request: Request) -> None:
    """Return if the type of a body is JSON.

    Raises:
        WrongContentType: It is another one.
    """
    given = request.headers.get("content-type", "")
    if given.partition(";")[0].strip().lower() != JSON:
        raise WrongContentType(
            f"Content-Type is {shown(given)}, and this route takes {JSON}",
            hint=f"send the header `Content-Type: {JSON}`",
        )
