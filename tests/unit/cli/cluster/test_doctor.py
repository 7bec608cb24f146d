"""The doctor's own look at the port of a broker; the others are ``vq.admin``'s."""

import os
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.hosts import HOSTS

from vq.cli.base.errors import CommandFailed
from vq.cli.base.options import Invocation
from vq.cli.cluster import doctor
from vq.client.config import MessageFactoryConfig
from vq.model import Address
from vq.operations.cluster import doctor as machine
from vq.operations.cluster.checks import Finding, Level


@pytest.mark.parametrize("host", HOSTS)
def test_a_free_and_a_taken_port_are_told_in_either_family(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as taken:
        address = Address(host, taken.getsockname()[1])
        threading.Thread(target=lambda: taken.accept()[0].close(), daemon=True).start()
        found = doctor.port_finding(address)
    assert found.level is Level.WARN
    assert str(address) in found.detail
    found = doctor.port_finding(address)
    assert found.level is Level.OK, found


def test_a_broker_that_listens_everywhere_is_asked_where_clients_connect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No certificate holds for 0.0.0.0; and as by an operator, if it takes users alone."""
    asked: list[object] = []

    async def ask_status(address: Address, **how: object) -> SimpleNamespace:
        asked.extend((address, how["operator"]))
        return SimpleNamespace(group="b1", node="n1", cluster="c")

    monkeypatch.setattr(doctor, "ask_status", ask_status)
    advertised = Address("mq1.example.org", 8123)
    with socket.create_server(("0.0.0.0", 0)) as taken:
        address = Address("0.0.0.0", taken.getsockname()[1])
        config = MessageFactoryConfig(cluster="c")
        found = doctor.port_finding(address, None, advertised, operator=config)
    assert asked == [advertised, config]
    assert (found.level, found.detail) == (
        Level.OK,
        f"{address}: broker b1/n1 of c listens there",
    )


def test_a_port_of_a_host_that_none_can_be_is_taken_and_no_error() -> None:
    found = doctor.port_finding(Address("no-such-host.invalid", 8123))
    assert found.level is Level.WARN


def test_details_are_broken_between_words_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And whole where they go to a program, or where there is hardly any room for them."""
    told = "the first words of a finding and " + "x" * 30
    monkeypatch.setenv("COLUMNS", "40")
    finding = Finding("port", Level.WARN, told, "free it")
    for terminal, lines in (
        (True, ["the first words of a finding", "and", "x" * 30, "-> free it"]),
        (False, [told, "-> free it"]),
    ):
        said: list[str] = []
        output = SimpleNamespace(as_json=False, to_terminal=terminal, line=said.append)
        doctor._print(cast("Invocation", SimpleNamespace(output=output)), [finding])
        assert said == [f"WARN  port  {lines[0]}", *(f"{' ' * 12}{each}" for each in lines[1:])]


def test_a_data_directory_that_hangs_is_left_to_the_check_that_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gives up after some seconds; the command looks at nothing by itself."""
    stat, free = os.stat, threading.Event()
    here, touched = threading.get_ident(), []

    def hang(path: Any, *args: Any, **more: Any) -> os.stat_result:
        if str(path) == str(tmp_path):
            touched.append(threading.get_ident())
            assert threading.get_ident() != here
            free.wait(30)
        return stat(path, *args, **more)

    monkeypatch.setattr(machine, "ANSWER_S", 0.01)
    monkeypatch.setattr(os, "stat", hang)
    with pytest.raises(CommandFailed):
        doctor.doctor.main(["--data", str(tmp_path), "--local"], standalone_mode=False)
    free.set()
    assert touched
