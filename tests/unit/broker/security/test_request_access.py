"""What the door remembers: bounded, and only as long as the rules are the same."""

from types import SimpleNamespace
from typing import Any

import pytest

from vq.broker.base.config import Authorization
from vq.broker.base.notice import Notice
from vq.broker.security import owners, request_access
from vq.broker.security.authority import Authority
from vq.broker.security.owners import Owners
from vq.broker.security.request_access import RequestAccess
from vq.clock import ManualClock
from vq.errors import NotAuthorized
from vq.remoting.format import Command
from vq.remoting.membership import Principal
from vq.security.rules import AccessRule, AccessRules

ALICE = Principal("", "", proved=False, user="alice")


def rules_of(*texts: str) -> AccessRules:
    return AccessRules(map(AccessRule.parse, texts))


def door(*texts: str) -> tuple[RequestAccess, Any]:
    known: Any = SimpleNamespace(current=rules_of(*texts), changed=Notice())
    authority = Authority(Authorization.ENFORCED, (), known, ManualClock())
    return RequestAccess(authority, lambda _: (), [Command.PUT, Command.GET]), known


def ask(access: RequestAccess, command: Command, topic: str) -> None:
    access.check(ALICE, command.value, command.request(topic=topic), b"")


@pytest.mark.parametrize("command", [Command.PUT, Command.GET])
def test_a_right_that_is_remembered_is_forgotten_with_its_rules(command: Command) -> None:
    access, known = door("allow * read,write topic:*")
    for _ in range(2):
        ask(access, command, "t")
    known.current = rules_of("allow * read,write topic:u")
    known.changed.tell()
    with pytest.raises(NotAuthorized):
        ask(access, command, "t")
    ask(access, command, "u")


def test_topics_that_are_remembered_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond it all are forgotten, and decided again."""
    monkeypatch.setattr(request_access, "GRANTED_MAX", 10)
    access, _ = door("allow * write topic:*", "deny * write topic:t7")
    for number in range(1_000):
        if number != 7:
            ask(access, Command.PUT, f"t{number}")
    with pytest.raises(NotAuthorized):
        ask(access, Command.PUT, "t7")


def test_permissive_remembers_nothing_that_rules_refuse() -> None:
    """Each of such requests is counted."""
    known: Any = SimpleNamespace(current=rules_of("allow * write topic:u"), changed=Notice())
    authority = Authority(Authorization.PERMISSIVE, (), known, ManualClock())
    access = RequestAccess(authority, lambda _: (), [Command.PUT])
    for topic in ("t", "u", "t", "u", "t"):
        ask(access, Command.PUT, topic)
    known.facts = lambda: iter(())
    (counted,) = authority.facts()
    assert dict(counted.things()) == {("write", "topic"): 3}


def test_a_number_is_whose_who_came_first_but_for_members() -> None:
    found = Owners()
    assert found.claim(5, "alice")
    assert found.claim(5, "alice")
    assert not found.claim(5, "bob")
    assert (found.of(5), found.of(6)) == ("alice", None)
    assert found.claim(7, "")
    assert not found.claim(7, "bob")
    found.take(5)
    assert not found.claim(5, "alice")


def test_owners_have_a_bound_and_those_in_use_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners, "OWNERS_MAX", 100)
    found = Owners()
    found.claim(1, "alice")
    for number in range(2, 10_000):
        found.claim(number, "bob")
        if not number % 10:
            assert not found.claim(1, "bob")
    assert found.of(2) is None
    assert sum(found.of(number) is not None for number in range(10_000)) <= 100


def test_a_command_without_a_right_in_its_row_is_not_carried_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker does not start with it."""
    monkeypatch.setattr(Command.FIND, "needs", None)
    known: Any = SimpleNamespace(current=None, changed=Notice())
    authority = Authority(Authorization.ENFORCED, (), known, ManualClock())
    with pytest.raises(LookupError, match="the row of FIND does not say"):
        RequestAccess(authority, lambda _: (), [Command.FIND])
