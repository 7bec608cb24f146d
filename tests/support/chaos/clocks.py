"""The faults of wall clocks: that of one node is set, or runs ten times as fast.

The monotonic clock stays: it is the kernel's, and nobody sets it (``wall``). A broker that took its
leases, sessions or deadlines from the wall clock would lose its group here; see ``Row.steady``.
"""

import asyncio
import time
from typing import Final

from support.chaos.nemesis import EFFECT_S, Field
from support.chaos.wall import set_wall

from vq.model import Address
from vq.remoting.broker_connection import connect
from vq.remoting.format import Command
from vq.remoting.transport import TcpNetwork
from vq.remoting.wire_pb2 import PingRequest, PingResponse
from vq.testing.waiting import block_until

#: Seconds; NTP steps by the small ones, a wrong time zone or an empty battery by the large ones.
STEPS_S: Final = (3_600, -3_600, 10, -10)
_SPEED: Final = 10
_STEP_EVERY_S: Final = 5.0
_ASK_S: Final = 5.0


def step_wall(field: Field) -> bool:
    """The clock of one node is set every 5 s: by an hour or by 10 s, forward or back."""
    groups = field.groups
    name = field.rng.choice(groups.of(field.group()))
    steps = field.rng.sample(STEPS_S, k=2 if field.brief else 3)
    try:
        for step in steps:
            begin = time.monotonic()
            set_wall(groups.data(name), step)
            _wait_ahead(field, name, step)
            time.sleep(max(0.0, begin + _STEP_EVERY_S - time.monotonic()))
    finally:
        set_wall(groups.data(name))
    _wait_ahead(field, name, 0)
    return True


def run_wall(field: Field) -> bool:
    """The clock of one node runs ten times as fast for 10 s, and is set right again."""
    groups = field.groups
    name = field.rng.choice(groups.of(field.group()))
    try:
        set_wall(groups.data(name), speed=_SPEED)
        time.sleep(2 * _STEP_EVERY_S)
        ahead_s = ahead_of_ours_s(field, name)
    finally:
        set_wall(groups.data(name))
    _wait_ahead(field, name, 0)
    return ahead_s > _STEP_EVERY_S


def _wait_ahead(field: Field, name: str, step_s: int) -> None:
    """Wait until a node goes by the time that it was given."""
    block_until(
        lambda: abs(ahead_of_ours_s(field, name) - step_s) < abs(min(STEPS_S, key=abs)) / 2,
        f"the clock of {name} is {step_s} s ahead",
        timeout_s=EFFECT_S,
    )


def ahead_of_ours_s(field: Field, name: str) -> float:
    """Return by how many seconds the clock of a node is ahead of this process'."""
    address = field.groups.nodes[name].spec.address
    return asyncio.run(_ask(address, field.groups.cluster.name)) / 1000 - time.time()


async def _ask(address: Address, cluster: str) -> int:
    connection = await connect(
        TcpNetwork(),
        address,
        client_id="chaos",
        cluster=cluster,
        timeout=_ASK_S,
        on_close=lambda _: None,
    )
    try:
        answer, _ = await connection.request(Command.PING, PingRequest(), timeout=_ASK_S)
    finally:
        connection.close()
    assert isinstance(answer, PingResponse)
    return answer.wall_ms
