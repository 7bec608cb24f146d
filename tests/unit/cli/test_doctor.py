"""The doctor's own look at the port of a broker; the others are ``vq.admin``'s."""

import socket
import threading

import pytest
from support.hosts import HOSTS

from vq.admin.checks import Level
from vq.cli import doctor
from vq.model import Address


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


def test_a_port_of_a_host_that_none_can_be_is_taken_and_no_error() -> None:
    found = doctor._port(Address("no-such-host.invalid", 8123))
    assert found.level is Level.WARN
