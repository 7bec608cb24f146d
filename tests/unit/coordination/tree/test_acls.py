"""Who may do what with which node: the table of rights, and identities."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vq.coordination.tree.acls import acl_of, checked_auth, identity_of
from vq.coordination.tree.coordinator import OPEN, Grant, NodeRights
from vq.coordination.tree.values.identities import Identities
from vq.errors import InvalidArgument
from vq.operations.tree.layout import KINDS

OPERATOR, BROKER, MAIL, ALL = (
    identity_of(f"{name}:0123456789abcdef") for name in ("op", "broker", "mail", "all")
)
IDENTITIES = Identities(
    operators=(OPERATOR,), brokers=(BROKER,), clients={MAIL: ("mail-*", "x"), ALL: ("*",)}
)


def letters(path: str, who: str) -> str:
    rights = [each.rights.letters for each in acl_of(path, IDENTITIES) if each.id == who]
    assert len(rights) <= 1
    return rights[0] if rights else ""


@pytest.mark.parametrize(
    ("path", "mail", "everybody"),
    [
        ("", "r", "r"),
        ("brokers/b1/state", "r", "r"),
        ("topics/orders", "r", "r"),
        ("settings", "r", "r"),
        ("security", "", ""),
        ("security/secret", "", ""),
        ("security/users/alice", "", ""),
        ("security/identities", "r", "r"),
        ("consumers", "cr", "cr"),
        ("consumers/mail-1", "cdrw", "cdrw"),
        ("consumers/mail-1/offsets/orders/0", "cdrw", "cdrw"),
        ("consumers/x", "cdrw", "cdrw"),
        ("consumers/billing", "r", "cdrw"),
        ("consumers/billing/members/m", "r", "cdrw"),
        ("slots", "cdrw", "cdrw"),
        ("slots/7", "cdrw", "cdrw"),
        ("decisions/3/name", "cdrw", "cdrw"),
        ("writes/w/tasks/1", "cdrw", "cdrw"),
    ],
)
def test_clients_write_only_what_is_theirs(path: str, mail: str, everybody: str) -> None:
    """Records of brokers, topics and secrets are none of it; nor are groups of others."""
    assert (letters(path, MAIL), letters(path, ALL)) == (mail, everybody)


OF_ACTS = [each.pattern for each in KINDS if each.pattern.startswith("audit/acts")]


def test_records_of_acts_are_written_once_and_not_changed() -> None:
    """An operator reads and makes them, a broker deletes them; they are none of clients."""
    assert [letters(each, OPERATOR) for each in OF_ACTS] == ["cra", "cra", "ra"]
    assert [letters(each, BROKER) for each in OF_ACTS] == ["cdrw", "cdr", "r"]
    assert [letters(each, ALL) for each in OF_ACTS] == ["", "", ""]


@pytest.mark.parametrize("path", [each.pattern for each in KINDS if each.pattern not in OF_ACTS])
def test_every_node_is_closed_to_strangers_and_open_to_operators(path: str) -> None:
    """Brokers may do all but change the ACL."""
    assert letters(path, OPERATOR) == "cdrwa"
    assert letters(path, BROKER) == "cdrw"
    assert not any(each.scheme == "world" for each in acl_of(path, IDENTITIES))


def test_without_identities_anybody_may_do_anything() -> None:
    """As a new tree is."""
    assert acl_of("topics/orders", None) == OPEN == {Grant("world", "anyone", NodeRights.ALL)}


@pytest.mark.parametrize(
    "auth", ["name", ":0123456789abcdef", "name:short", "name:" + 30 * "0123456789abcdef"]
)
def test_what_is_no_identity_is_refused_and_not_shown(auth: str) -> None:
    """A password in an error would be one in a log."""
    with pytest.raises(InvalidArgument, match="name:password") as refused:
        checked_auth(auth)
    assert "0123456789abcdef" not in str(refused.value)


@pytest.mark.parametrize("digests", [(), ("name",), ("name:short",)])
def test_identities_without_an_operator_are_none(digests: tuple[str, ...]) -> None:
    """Nobody could change an ACL again."""
    with pytest.raises(InvalidArgument):
        Identities(operators=digests)


@given(st.text(max_size=40), st.text(max_size=40))
def test_a_digest_names_its_user_and_not_its_password(name: str, password: str) -> None:
    """And the password decides it."""
    digest = identity_of(f"{name}:{password}")
    assert digest.startswith(f"{name.partition(':')[0]}:")
    assert digest != identity_of(f"{name}:{password}x")
