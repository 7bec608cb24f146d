"""Connections that end in the middle of a frame, for a client whose batches have no producer stamp.

    raw client ──▶ proxy ──✗ after a random byte of a request or a reply ──▶ broker

Goal: without a stamp the broker cannot tell a resend, so one may be stored twice; but only where
the client had to say that the outcome was unknown. What was acknowledged at once stands there once.
"""

from collections import Counter

import pytest
from support.block_files import read_partition
from support.chaos_proxy import DOWN, UP, ChaosProxy
from support.cluster import ProcessCluster
from support.faults import make_rng, times
from support.raw_client import RawClient, message

from vq.errors import VqError
from vq.testing.waiting import block_until

pytestmark = pytest.mark.slow

PER_CUT = 50


def test_without_a_stamp_only_sends_of_unknown_outcome_are_doubled(
    processes: ProcessCluster,
) -> None:
    """Each send is repeated until it is acknowledged, as a careless client would."""
    rng = make_rng()
    cuts = times(20, 500)
    acknowledged: dict[bytes, int] = {}
    unknown: set[bytes] = set()
    with ChaosProxy() as proxy:
        broker = processes.add("b1", "--advertised", str(proxy.address))
        proxy.target = broker.spec.address
        processes.vq_json("topic", "create", "t")
        client = RawClient(tuple(proxy.address))

        def send(payload: bytes) -> None:
            """Send until it is acknowledged."""
            nonlocal client
            while True:
                try:
                    answer = client.put("t", 0, [message(payload)], producer_id=0)
                except (OSError, VqError):
                    unknown.add(payload)
                    client.close()
                    client = RawClient(tuple(proxy.address))
                else:
                    acknowledged[payload] = answer.offset
                    return

        def send_some(count: int) -> None:
            for _ in range(count):
                send(b"%07d-" % len(acknowledged) + rng.randbytes(rng.choice((0, 100, 2000))))

        block_until(lambda: _takes(client), "the broker has the partition")
        for number in range(cuts):
            send_some(PER_CUT)
            direction = rng.choice([UP, DOWN])
            proxy.cut(direction, rng.randrange(2_000 if direction == UP else 200))
            while len(proxy.cuts) == number:
                send_some(1)
        send_some(PER_CUT)
        client.close()
        unheard = sum(cut.direction == DOWN for cut in proxy.cuts)
        assert len(proxy.cuts) == cuts
    assert broker.stop() == 0
    files = read_partition(broker.spec.data / "t" / "0")
    assert not files.damage
    stored = Counter(payload for _, payload in files.messages if payload != b"probe")
    doubled = {payload for payload, count in stored.items() if count > 1}
    print(
        f"{len(unknown)} of {len(acknowledged)} unknown, {len(doubled)} doubled, {unheard} unheard"
    )
    assert len(acknowledged) >= PER_CUT * cuts
    assert stored.keys() == acknowledged.keys(), "something is lost, or was never sent"
    assert doubled <= unknown, "a send whose outcome was known is there twice"
    assert len(unknown) <= cuts
    assert doubled, "no answer was lost behind a stored batch: the run is void"
    places = dict(files.messages)
    assert all(places[offset] == payload for payload, offset in acknowledged.items())


def _takes(client: RawClient) -> bool:
    try:
        return bool(client.put("t", 0, [message(b"probe")], producer_id=0).offset)
    except VqError:
        return False
