"""Values of which the tree has one: read and changed through their own module's functions."""

import pytest

from vq.coordination.security.access import change_access, read_access
from vq.coordination.security.quotas import change_quotas, read_quotas
from vq.coordination.tree.coordinator import NODE_BYTES_MAX
from vq.errors import InvalidArgument
from vq.security.quotas import Quota, Quotas
from vq.security.rules import AccessRule, AccessRules

pytestmark = pytest.mark.virtual_time


async def test_what_nobody_has_written_is_empty_and_a_change_that_changes_nothing_is_no_write(
    client,
) -> None:
    assert await read_access(client) == (AccessRules(), -1)
    assert await change_access(client, lambda before: before) == AccessRules()
    assert await read_access(client) == (AccessRules(), -1)
    rules = AccessRules([AccessRule.parse("allow user:ann read topic:orders")])
    for _ in range(2):
        assert await change_access(client, lambda _: rules) == rules
    assert await read_access(client) == (rules, 0)


async def test_a_value_larger_than_a_node_is_refused_with_what_to_do(client) -> None:
    """The error is one of the value, not of the session, and nothing is written."""
    name = "u" * 60
    many = Quotas(Quota.parse(f"user:{name}{each} requests=5") for each in range(7_000))
    with pytest.raises(InvalidArgument, match=rf"at most {NODE_BYTES_MAX} .* user:\* the limits"):
        await change_quotas(client, lambda _: many)
    assert await read_quotas(client) == Quotas()
