"""Settings of a gateway."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from vq.errors import InvalidArgument
from vq.gateway.config import GatewayConfig

TOKENS = Path("tokens")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_without_tokens_it_serves_its_own_machine(host: str) -> None:
    assert "localhost" in GatewayConfig(host=host).host_names


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "gateway.example"])
def test_without_tokens_it_is_not_reached_from_elsewhere(host: str) -> None:
    with pytest.raises(InvalidArgument, match=r"vq gateway token NAME.*or listen on 127\.0\.0\.1"):
        GatewayConfig(host=host, allowed_hosts=("*",))


def test_the_names_of_its_host_are_those_given_or_its_address() -> None:
    assert GatewayConfig(host="10.0.0.1", tokens=TOKENS).host_names == {"10.0.0.1"}
    named = GatewayConfig(host="0.0.0.0", tokens=TOKENS, allowed_hosts=("VQ.example", "[::2]"))
    assert named.host_names == {"vq.example", "::2"}
    with pytest.raises(InvalidArgument, match="--allowed-host"):
        GatewayConfig(host="0.0.0.0", tokens=TOKENS)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"port": 65_536}, "port = 65536 is outside"),
        ({"lease_s": 1}, "lease_s = 1 is outside"),
        ({"consumers_max": 0}, "consumers_max = 0 must be above 0"),
        ({"body_bytes_max": 1024}, "body_bytes_max = 1024 is below"),
        ({"bodies_bytes_max": 3 << 20}, "is below body_bytes_max"),
        ({"origins": ("shop.example",)}, "has no scheme"),
    ],
)
def test_a_setting_that_cannot_be_is_told(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        GatewayConfig(**settings)


def test_the_reference_has_every_setting() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "http-gateway.md").read_text()
    assert [each.name for each in fields(GatewayConfig) if f"`{each.name}`" not in page] == []
