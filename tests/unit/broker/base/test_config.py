"""Settings are checked once."""

from pathlib import Path
from typing import Any

import pytest

from vq import limits
from vq.broker.base.config import Authorization, BrokerConfig, ConnectionLimits
from vq.errors import InvalidArgument
from vq.model import Address

DATA = Path("/data")
NAMES: dict[str, Any] = {"data": DATA, "group": "b1", "node": "n1"}


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"group": "a/b"}, "group name"),
        ({"node": ".."}, "node name"),
        ({"port": 70_000}, "70000"),
        ({"disk_refuse": 1.2}, "1.2"),
        ({"disk_resume": 0.95}, "0.95"),
        ({"block_bytes": 1_000}, "1000"),
        ({"catch_up_bytes_per_s": 1_000}, "1000 is below 1048576"),
        ({"stop_timeout_s": 0}, "stop_timeout_s"),
        ({"load_interval_s": 11.0}, "11.0 is above 10.0"),
        ({"scrub_bytes_per_s": -1}, "scrub_bytes_per_s = -1"),
        ({"trash_keep_s": -1}, "trash_keep_s = -1"),
        ({"key_index_bytes_per_s": -1}, "key_index_bytes_per_s = -1"),
    ],
)
def test_a_wrong_setting_is_named_with_its_value(settings, text):
    """Configuration is checked once, when it is made."""
    with pytest.raises(InvalidArgument, match=text):
        BrokerConfig(**{"data": DATA, "group": "b1", "node": "n1", **settings})


def test_a_bound_of_zero_is_refused():
    """A bound that lets nothing through is a mistake."""
    with pytest.raises(InvalidArgument, match="connections_max"):
        ConnectionLimits(connections_max=0)


def test_the_defaults_are_those_shared_with_clients():
    """A client that keeps to vq.limits is never cut off by a default broker."""
    assert ConnectionLimits().requests_in_flight_max == limits.REQUESTS_IN_FLIGHT_PER_CONNECTION_MAX
    assert BrokerConfig(data=DATA, group="b1", node="n1").host == "127.0.0.1"


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_an_address_that_names_no_machine_is_told_to_no_client(host: str) -> None:
    """A client that connects to it reaches its own machine."""
    with pytest.raises(InvalidArgument, match="--advertised HOST:PORT"):
        BrokerConfig(**NAMES, host=host)
    with pytest.raises(InvalidArgument, match="names no machine"):
        BrokerConfig(**NAMES, advertised=Address(host, 8123))
    reached = Address("broker-1", 8123)
    assert BrokerConfig(**NAMES, host=host, advertised=reached).advertised == reached


@pytest.mark.parametrize("given", ["enforced", Authorization.ENFORCED])
def test_authorization_is_one_of_its_modes_however_it_is_given(given: Any) -> None:
    """A text that is taken for no mode would be taken for a weaker one."""
    made = BrokerConfig(**NAMES, authorization=given)
    assert made.authorization is Authorization.ENFORCED
    for wrong in ("Enforced", "on", "", True):
        with pytest.raises(InvalidArgument, match="authorization"):
            BrokerConfig(**NAMES, authorization=wrong)
