"""What bounds the time of a thread that waits; tests with real peers are in tests/integration."""

import time
from typing import Any

import pytest

from vq.errors import Unreachable
from vq.model import Address
from vq.remoting.blocking_connection import BlockingConnection
from vq.remoting.format import Command


class NobodyThere:
    """A network that only says until when somebody waited."""

    def __init__(self) -> None:
        self.deadlines: list[float] = []

    def open_stream(self, address: Address, deadline: float) -> Any:
        self.deadlines.append(deadline)
        raise Unreachable(f"cannot connect to {address}")


@pytest.mark.parametrize(("connect_s", "exchange_s"), [(1e3, 1e6), (1e6, 1e3)])
def test_connecting_has_a_bound_of_its_own_and_that_of_the_message(
    connect_s: float, exchange_s: float
) -> None:
    network: Any = NobodyThere()
    connection = BlockingConnection(
        network, Address("b", 1), client_id="c", cluster="c", timeout=connect_s
    )
    begin = time.monotonic()
    with pytest.raises(Unreachable):
        connection.exchange(Command.PUT, b"", b"", exchange_s)
    assert begin + 1e3 <= network.deadlines[0] <= time.monotonic() + 1e3
