"""The doctor's own looks at this machine; what it concludes is in ``test_checks``."""

import socket
import threading

import pytest

from vq.cli import doctor
from vq.cli.checks import Level
from vq.devtools.zookeeper import free_port
from vq.model import Address


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


HOSTS = ["127.0.0.1", pytest.param("::1", marks=pytest.mark.skipif(not _has_ipv6(), reason="v4"))]


@pytest.mark.parametrize("host", HOSTS)
def test_a_free_and_a_taken_port_are_told_in_either_family(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as taken:
        address = Address(host, taken.getsockname()[1])
        threading.Thread(target=lambda: taken.accept()[0].close(), daemon=True).start()
        found = doctor._port(address)
    assert found.level is Level.WARN
    assert str(address) in found.detail
    found = doctor._port(address)
    assert found.level is Level.OK, found


@pytest.mark.parametrize("host", HOSTS)
def test_a_zookeeper_that_is_silent_and_one_that_is_away(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        address = Address(host, server.getsockname()[1])

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(16)
                connection.sendall(b"Zookeeper version: 3.9.2-abc, built on some day\n")

        threading.Thread(target=answer, daemon=True).start()
        assert doctor._version(str(address)) == "3.9.2"
    assert doctor._version(str(Address(host, free_port()))) is None


def test_a_host_that_none_can_be_is_away_and_not_an_error() -> None:
    assert doctor._version("a..b:2181") is None
    assert doctor._version("a..b") is None
    found = doctor._port(Address("no-such-host.invalid", 8123))
    assert found.level is Level.WARN
