"""A real broker process and peers that only cost it: what is left for its clients."""

import resource
import time

import pytest
from support.raw_client import RawClient, message
from support.strangers import strangers

from vq.devtools.processes import BrokerChild
from vq.errors import UnknownTopic
from vq.limits import CONNECTIONS_BEFORE_HELLO_MAX
from vq.testing.waiting import PROCESSES_WAIT_S, block_until

pytestmark = pytest.mark.slow


def _processor_s(broker: BrokerChild) -> float:
    """Return the processor time that the broker has used."""
    with open(f"/proc/{broker.pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def test_a_flood_of_silent_connections_does_not_keep_clients_waiting(processes):
    """More than may be silent, which come back at once: each new client gets through.

    From the address of the flood, and from another one.
    """
    broker = processes.add("b1")
    address, flooding = broker.spec.address, "127.0.0.2"
    with strangers(address, 2 * CONNECTIONS_BEFORE_HELLO_MAX, source=flooding):
        with RawClient(address, timeout_s=PROCESSES_WAIT_S, source=flooding) as client:
            block_until(lambda: client.status().connections > 100)
        # Without a bound per address some of them were turned away.
        for source in ("", "", flooding, "", ""):
            with RawClient(address, timeout_s=PROCESSES_WAIT_S, source=source) as client:
                client.status()


@pytest.mark.parametrize("descriptors", [80, 16], ids=["almost none left", "none left"])
def test_a_broker_without_descriptors_says_so_and_recovers(processes, descriptors):
    """Clients that are there go on; new ones wait in the backlog until there is room."""
    broker = processes.add("b1")
    processes.vq("topic", "create", "t")
    address, (soft, hard) = (
        broker.spec.address,
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE),
    )
    with RawClient(address) as client:
        client.put("t", 0, [message(b"x")])
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (descriptors, hard))
        held: list[RawClient] = []
        try:
            for _ in range(80):
                held.append(RawClient(address, hello=False))
                held[-1].sock.sendall(b"".join(held[-1].connection.hello(client_id="raw")))
            block_until(lambda: client.status().problems)
            (problem,) = client.status().problems
            assert "new connections wait" in problem
            client.put("t", 0, [message(b"y")])
            processor_s, begun = _processor_s(broker), time.monotonic()
            block_until(lambda: time.monotonic() - begun > 1.5)
            assert _processor_s(broker) - processor_s < 0.5, "it spins"
        finally:
            resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (soft, hard))
        for each in held:  # those in the backlog are served now
            while each.hello is None:
                each._receive()
            each.close()
        assert not client.status().problems
    log = broker.spec.log.read_text()
    assert log.count("cannot accept connections") == 1
    assert log.count("accepting connections again") == 1


def test_invented_topics_of_many_connections_do_not_keep_clients_waiting(processes):
    """Sixteen connections name thousands of them: another client's look-up is answered before."""
    broker = processes.add("b1")
    processes.vq("topic", "create", "t")
    greedy = [RawClient(broker.spec.address, timeout_s=PROCESSES_WAIT_S) for _ in range(16)]
    try:
        for tries in range(5):  # all may be answered before this process asks what waits
            asked = [
                [client.send_get(f"invented-{tries}-{number}-{n}", 0, 0) for n in range(150)]
                for number, client in enumerate(greedy)
            ]
            with RawClient(broker.spec.address, timeout_s=PROCESSES_WAIT_S) as client:
                with pytest.raises(UnknownTopic):
                    client.get(f"mistyped-{tries}", 0, 0)
                waited = client.status().requests_waiting
            for one, waiting in zip(greedy, asked, strict=True):
                for each in waiting:
                    with pytest.raises(UnknownTopic):
                        one.wait(each)
            if waited > len(greedy):
                break
        assert waited > len(greedy), "a look-up waited for those of others"
    finally:
        for one in greedy:
            one.close()
