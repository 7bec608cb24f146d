"""The secret of a cluster stays one."""

import pytest

from vq.coordination.tree.values.cluster import ClusterSecret
from vq.errors import CoordinationError


@pytest.mark.parametrize(
    "data",
    [
        b'{"v": 1, "secret": "5ec4e7"}',
        b'{"v": 1, "secret": 5347}',
        b'{"v": 1, "secret": "5ec4e7zz"}',
        b"5ec4e7",
    ],
)
def test_no_error_and_no_repr_shows_a_secret(data: bytes) -> None:
    """Errors are logged."""
    with pytest.raises(CoordinationError, match="not a secret; it is not shown") as caught:
        ClusterSecret.decode("security/secret", data)
    assert "5ec4e7" not in str(caught.value)
    assert caught.value.__cause__ is caught.value.__context__ is None
    assert "a5a5" not in repr(ClusterSecret(secret="a5" * 32))
