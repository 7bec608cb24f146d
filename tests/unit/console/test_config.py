"""What browsers call the console: written as people do, compared as browsers do."""

import pytest
from starlette.requests import Request

from vq.client.config import MessageFactoryConfig
from vq.console.config import ConsoleConfig
from vq.console.web.security import ConsoleGate
from vq.errors import InvalidArgument

CLUSTERS = {"a": MessageFactoryConfig(cluster="a")}


@pytest.mark.parametrize(
    "url", ["https://vq.example.org:443", "HTTPS://VQ.example.org/", "https://vq.example.org"]
)
def test_a_browser_leaves_the_usual_port_out(url) -> None:
    gate = ConsoleGate(ConsoleConfig(clusters=CLUSTERS, public_url=url))
    sent = {"host": "vq.example.org", "origin": "https://vq.example.org"}
    headers = [(name.encode(), value.encode()) for name, value in sent.items()]
    request = Request({"type": "http", "headers": headers, "method": "POST"})
    assert gate.secure
    assert gate.why_wrong_host(request) == ""
    assert gate.why_foreign(request) == ""


@pytest.mark.parametrize("url", ["https://u:p@x", "https://x/?a=1", "https://x#f", "https://x/a"])
def test_a_public_url_is_scheme_host_and_port(url) -> None:
    with pytest.raises(InvalidArgument, match="scheme, host and port only"):
        ConsoleConfig(clusters=CLUSTERS, public_url=url)


@pytest.mark.parametrize("series", [99, 20_001])
def test_the_history_has_a_bound(series) -> None:
    with pytest.raises(InvalidArgument, match=rf"history_series = {series} is outside"):
        ConsoleConfig(clusters=CLUSTERS, history_series=series)
