"""Plain text beyond this machine is refused unless somebody has said that it is wanted."""

import pytest
import trustme
from support.cases import case
from support.certificates import write_tls

from vq.broker.base.config import BrokerConfig
from vq.broker.main import build_node
from vq.console.config import ConsoleConfig
from vq.console.server import serve
from vq.errors import InvalidArgument
from vq.gateway.config import GatewayConfig
from vq.gateway.server import GatewayProcess
from vq.remoting.ports import check_plaintext, counted_address, is_loopback

WARNS = "other machines are served without TLS"


def test_only_other_machines_need_tls_or_a_word(caplog: pytest.LogCaptureFixture) -> None:
    for host, encrypted, plaintext, warned in (
        ("127.0.0.1", False, False, False),
        ("127.9.9.9", False, True, False),
        ("localhost", False, False, False),
        ("::1", False, False, False),
        ("10.0.0.11", True, False, False),
        ("10.0.0.11", False, True, True),
        ("0.0.0.0", False, True, True),
    ):
        with case(host):
            caplog.clear()
            listens = {"host": host, "metrics_host": "127.0.0.1"}
            check_plaintext(listens, encrypted=encrypted, plaintext=plaintext, settings="tls")
            assert (WARNS in caplog.text) is warned
    for host in ("10.0.0.11", "0.0.0.0", "::", "b1.example", "localhost.example", "127.evil"):
        with case(host), pytest.raises(InvalidArgument, match="plaintext = true") as refused:
            check_plaintext(
                {"host": "::1", "metrics_host": host},
                encrypted=False,
                plaintext=False,
                settings="tls",
            )
        assert f"metrics_host = '{host}'" in str(refused.value)
        assert "tls_certificate" in str(refused.value)


def test_a_broker_does_not_start_with_an_open_port_that_nobody_asked_for(
    tmp_path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where only its metrics are open; without them nothing is."""
    config = {"data": tmp_path, "group": "b1", "node": "n1"}
    for hosts in ({"host": "10.0.0.11"}, {"metrics_host": "10.0.0.11"}):
        with case(hosts), pytest.raises(InvalidArgument, match=next(iter(hosts))):
            build_node(BrokerConfig(**config, **hosts))
    tls = write_tls(tmp_path / "tls", trustme.CA())
    for mode in ("accepted", "preferred"):
        with case(mode), pytest.raises(InvalidArgument, match="plaintext"):
            build_node(BrokerConfig(**config, host="10.0.0.11", tls=tls, tls_mode=mode))
    build_node(BrokerConfig(**config, host="10.0.0.11", tls=tls, authentication="required"))
    build_node(BrokerConfig(**config, metrics_host="10.0.0.11", metrics_port=0))
    assert WARNS not in caplog.text
    build_node(BrokerConfig(**config, host="10.0.0.11", plaintext=True, authentication="required"))
    assert WARNS in caplog.text


def test_a_broker_does_not_serve_strangers_unless_somebody_says_so(
    tmp_path, caplog: pytest.LogCaptureFixture
) -> None:
    """The error names each way out; each of them is one, and ``off`` warns."""
    config = {"data": tmp_path, "group": "b1", "node": "n1", "plaintext": True}
    tls = write_tls(tmp_path / "tls", trustme.CA())
    warns = "other machines are served without authentication"
    for settings in ({}, {"authentication": "loopback"}, {"tls": tls}):
        with (
            case(settings),
            pytest.raises(InvalidArgument, match="host = ") as error,
        ):
            build_node(BrokerConfig(**config, host="10.0.0.11", **settings))
        for way in ("required", "vq user add", "authentication = off", "127.0.0.1"):
            assert way in str(error.value)
    step = {"tls": tls, "tls_client_certificates": "required", "tls_mode": "accepted"}
    with pytest.raises(InvalidArgument, match="authentication"):
        build_node(BrokerConfig(**config, host="10.0.0.11", **step))
    for settings in (
        {"host": "127.0.0.1"},
        {"host": "::1", "authentication": "off"},
        {"host": "10.0.0.11", "authentication": "optional"},
        {"host": "10.0.0.11", "authentication": "required"},
        {"host": "10.0.0.11", "tls": tls, "tls_client_certificates": "required"},
    ):
        with case(settings):
            build_node(BrokerConfig(**config, **settings))
    assert warns not in caplog.text
    build_node(BrokerConfig(**config, host="10.0.0.11", authentication="off"))
    assert warns in caplog.text


async def test_nor_do_the_gateway_and_the_console(tmp_path) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.touch(mode=0o600)
    tokens.write_text("version = 1\n")
    gateway = GatewayProcess(GatewayConfig(host="10.0.0.11", tokens=tokens), object())
    with pytest.raises(InvalidArgument, match="https_certificate"):
        await gateway.start()
    clusters = {"a": None}
    with pytest.raises(InvalidArgument, match="https_certificate"):
        await serve(ConsoleConfig(clusters=clusters, host="10.0.0.11"), print)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("fe80::1%eth0", False),
        ("client", False),
        ("localhost", True),
        ("localhost.example.org", False),
        ("0.0.0.0", False),
        ("", False),
        ("None", False),
    ],
)
def test_loopback_is_known_in_every_form(address, expected):
    assert is_loopback(address) is expected


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("203.0.113.5", "203.0.113.5"),
        ("::ffff:203.0.113.5", "203.0.113.5"),
        ("2001:db8:0:1::5", "2001:db8:0:1::/64"),
        ("2001:db8:0:1:ffff:ffff:ffff:ffff", "2001:db8:0:1::/64"),
        ("2001:db8:0:2::5", "2001:db8:0:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::1"),
        ("unix", "unix"),
        ("", ""),
    ],
)
def test_what_is_done_from_ipv6_is_counted_for_the_network_of_a_subscriber(
    address: str, counted: str
) -> None:
    """Whoever has one address of IPv6 has 2 to the power of 64 of them."""
    assert counted_address(address) == counted
