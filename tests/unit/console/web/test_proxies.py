"""For whom a proxy asks: only what a trusted proxy has added is believed, from the right."""

import pytest

from vq.client.config import MessageFactoryConfig
from vq.console.config import ConsoleConfig
from vq.console.web.proxies import BehindProxies, client_of
from vq.errors import InvalidArgument

CLUSTERS = {"a": MessageFactoryConfig(cluster="a")}
PROXIES = ("10.0.0.7", "10.1.0.0/16", "fd00::/64")


def proxies(*texts: str, **settings):
    return ConsoleConfig(clusters=CLUSTERS, trusted_proxies=texts, **settings).proxies


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("10.0.0.7", ["203.0.113.5"], "203.0.113.5"),
        ("10.0.0.7", ["6.6.6.6, 203.0.113.5"], "203.0.113.5"),
        ("10.0.0.7", ["6.6.6.6", "203.0.113.5"], "203.0.113.5"),
        ("10.0.0.7", ["203.0.113.5, 10.1.2.3"], "203.0.113.5"),
        ("10.0.0.7", ["6.6.6.6, 203.0.113.5, 10.1.2.3"], "203.0.113.5"),
        ("10.0.0.7", ["10.1.2.4, 10.1.2.3"], "10.1.2.4"),
        ("10.0.0.8", ["203.0.113.5"], "10.0.0.8"),
        ("203.0.113.9", ["10.0.0.7"], "203.0.113.9"),
        ("10.0.0.7", ["unknown"], "10.0.0.7"),
        ("10.0.0.7", ["203.0.113.5, nonsense, 10.1.2.3"], "10.1.2.3"),
        ("10.0.0.7", [""], "10.0.0.7"),
        ("10.0.0.7", [], "10.0.0.7"),
        ("10.0.0.7", ["203.0.113.5:4711"], "203.0.113.5"),
        ("10.0.0.7", ['"[2001:db8::1]:4711"'], "2001:db8::1"),
        ("fd00::5", ["2001:db8::1"], "2001:db8::1"),
        ("::ffff:10.0.0.7", ["203.0.113.5"], "203.0.113.5"),
        ("unix", ["203.0.113.5"], "unix"),
    ],
)
def test_an_address_counts_as_far_as_trusted_proxies_have_added_it(peer, forwarded, client) -> None:
    assert client_of(peer, forwarded, proxies(*PROXIES)) == client


def test_without_a_name_only_proxies_of_this_machine_are_believed_and_only_with_a_public_url() -> (
    None
):
    assert client_of("127.0.0.1", ["203.0.113.5"], proxies()) == "127.0.0.1"
    behind = proxies(public_url="https://vq.example.org")
    assert client_of("127.0.0.1", ["203.0.113.5"], behind) == "203.0.113.5"
    assert client_of("::1", ["203.0.113.5"], behind) == "203.0.113.5"
    assert client_of("10.0.0.7", ["203.0.113.5"], behind) == "10.0.0.7"
    named = proxies("10.0.0.7", public_url="https://vq.example.org")
    assert client_of("127.0.0.1", ["203.0.113.5"], named) == "127.0.0.1"


@pytest.mark.parametrize("text", ["", "proxy.example", "10.0.0.0/33", "10.0.0.7:80", "*"])
def test_a_trusted_proxy_is_an_address_or_a_network(text) -> None:
    with pytest.raises(InvalidArgument, match="no address and no network"):
        proxies(text)


@pytest.mark.parametrize("text", ["0.0.0.0/0", "::/0"])
def test_everybody_is_no_proxy(text) -> None:
    with pytest.raises(InvalidArgument, match="everybody"):
        proxies(text)


@pytest.mark.parametrize(
    ("peer", "said", "scheme"),
    [
        ("10.0.0.7", b"https", "https"),
        ("10.0.0.7", b"http, https", "https"),
        ("10.0.0.7", b"javascript", "http"),
        ("10.0.0.8", b"https", "http"),
    ],
)
async def test_over_what_somebody_comes_is_said_by_a_trusted_proxy_only(peer, said, scheme) -> None:
    seen = []

    async def app(scope, receive, send) -> None:
        seen.append((scope["scheme"], scope["client"][0]))

    headers = [(b"x-forwarded-proto", said), (b"x-forwarded-for", b"203.0.113.5")]
    scope = {"type": "http", "scheme": "http", "client": (peer, 1), "headers": headers}
    await BehindProxies(app, proxies(*PROXIES))(scope, None, None)
    assert seen == [(scheme, "203.0.113.5" if peer == "10.0.0.7" else peer)]
