"""Rules of access: what they read, what they decide, and that no change of one loses another."""

import time
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vq.errors import InvalidArgument
from vq.security.rules import (
    REMEMBERED_MAX,
    RULES_MAX,
    AccessRule,
    AccessRules,
    Need,
    Resource,
    Right,
    RuleEffect,
    decide,
    parse_resource,
    source_of,
)

TOPIC, GROUP, ID, CLUSTER = Resource
DESCRIBE, READ, WRITE, MANAGE = Right
ALLOW, DENY = RuleEffect


class User(NamedTuple):
    """Who asks."""

    user: str = ""
    roles: frozenset[str] = frozenset()


ALICE, NOBODY = User("alice"), User()


def rules_of(*texts: str) -> AccessRules:
    return AccessRules(map(AccessRule.parse, texts))


@pytest.mark.parametrize(
    "text",
    [
        "allow user:alice read,write topic:orders",
        "deny role:billing manage group:invoices*",
        "allow anonymous describe cluster",
        "deny * write topic:*",
        "allow user:a.b write transactional-id:shop/7@x",
    ],
)
def test_the_text_of_a_rule_is_what_it_is_read_from(text: str) -> None:
    assert str(AccessRule.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("allow user:alice read", "an effect"),
        ("permit user:alice read topic:a", "permit"),
        ("allow alice read topic:a", "subject 'alice'"),
        ("allow user: read topic:a", "user:NAME"),
        ("allow user:../a read topic:a", "subject"),
        ("allow user:alice drop topic:a", "rights 'drop'"),
        ("allow user:alice read,,write topic:a", "rights"),
        ("allow user:alice read topic", "resource 'topic'"),
        ("allow user:alice read topic:", "topic ''"),
        ("allow user:alice read topic:a*b", "'a*b'"),
        ("allow user:alice read topic:**", "topic '*'"),
        ("allow user:alice read cluster:x", "resource"),
        ("allow user:alice read queue:x", "queue:x"),
        ("allow user:alice read topic:" + "x" * 201, "201 characters"),
        ("allow user:alice read topic:_vq.dlq.g", "give that"),
        ("allow user:alice read topic:_vq.delayed", "cluster"),
    ],
)
def test_what_is_no_rule_is_refused_with_its_value(text: str, why: str) -> None:
    with pytest.raises(InvalidArgument, match="^(?s:.)*" + why.replace("*", r"\*")):
        AccessRule.parse(text)


@pytest.mark.parametrize(
    ("asker", "need", "decided"),
    [
        (ALICE, Need(READ, TOPIC, "orders"), "allow user:alice read,write topic:orders"),
        (ALICE, Need(DESCRIBE, TOPIC, "orders"), "allow user:alice read,write topic:orders"),
        (ALICE, Need(MANAGE, TOPIC, "orders"), None),
        (ALICE, Need(READ, TOPIC, "orders2"), None),
        (ALICE, Need(READ, TOPIC, "order"), None),
        (ALICE, Need(READ, GROUP, "orders"), None),
        (NOBODY, Need(READ, TOPIC, "orders"), None),
        (User("bob"), Need(READ, TOPIC, "orders"), None),
        (User("bob", frozenset({"shop"})), Need(WRITE, TOPIC, "shop.a"), "allow role:shop write"),
        (User("", frozenset({"shop"})), Need(WRITE, TOPIC, "shop.a"), None),
        (User("bob", frozenset({"shop"})), Need(WRITE, TOPIC, "shop.secret"), "deny * write"),
        (User("bob", frozenset({"shop"})), Need(DESCRIBE, TOPIC, "shop.secret"), "allow role:shop"),
        (User("bob", frozenset({"shop"})), Need(WRITE, TOPIC, "shop."), "allow role:shop"),
        (User("bob", frozenset({"shop"})), Need(WRITE, TOPIC, "shop"), None),
        (User("anonymous"), Need(DESCRIBE, CLUSTER), None),  # a user of that name
        (NOBODY, Need(DESCRIBE, CLUSTER), "allow anonymous"),
    ],
)
def test_a_deny_wins_and_what_no_rule_allows_is_refused(
    asker: User, need: Need, decided: str | None
) -> None:
    rules = rules_of(
        "allow user:alice read,write topic:orders",
        "allow role:shop write topic:shop.*",
        "deny * write topic:shop.secret",
        "allow anonymous describe cluster",
    )
    decision = decide(rules, asker, need)
    assert decision.allowed is (decided is not None and decided.startswith("allow"))
    assert str(decision.rule or "").startswith(decided or "") is True
    assert (decision.rule is None) is (decided is None)
    assert rules.decide(asker, *need) == rules.decide(asker, *need) == decision


@pytest.mark.parametrize(
    ("need", "source"),
    [
        (Need(READ, TOPIC, "_vq.dlq.g"), Need(READ, GROUP, "g")),
        (Need(WRITE, TOPIC, "_vq.dlq.g"), Need(READ, GROUP, "g")),
        (Need(WRITE, TOPIC, "_vq.retry.g"), Need(READ, GROUP, "g")),
        (Need(MANAGE, TOPIC, "_vq.retry.g"), Need(MANAGE, GROUP, "g")),
        (Need(READ, TOPIC, "_vq.delayed"), Need(READ, CLUSTER)),
        (Need(WRITE, TOPIC, "_vq.transactions"), Need(WRITE, CLUSTER)),
        (Need(READ, TOPIC, "_vq.dlq."), Need(READ, CLUSTER)),
        (Need(READ, TOPIC, "_vq.later"), Need(READ, CLUSTER)),
        (Need(READ, TOPIC, "_vq.replies.t"), Need(WRITE, TOPIC, "t")),
        (Need(WRITE, TOPIC, "_vq.replies.t"), Need(READ, TOPIC, "t")),
        (Need(DESCRIBE, TOPIC, "_vq.replies.t"), Need(DESCRIBE, TOPIC, "t")),
        (Need(MANAGE, TOPIC, "_vq.replies.t"), Need(MANAGE, TOPIC, "t")),
        (Need(READ, TOPIC, "_vq.replies."), Need(READ, CLUSTER)),
        (Need(WRITE, TOPIC, "_vq.probe.b1"), Need(WRITE, TOPIC, "_vq.probe.b1")),
        (Need(READ, GROUP, "_vq.dlq.g"), Need(READ, GROUP, "_vq.dlq.g")),
        (Need(READ, TOPIC, "vq.dlq.g"), Need(READ, TOPIC, "vq.dlq.g")),
    ],
)
def test_vqs_own_topics_inherit_and_no_rule_about_topics_reaches_them(
    need: Need, source: Need
) -> None:
    assert source_of(need) == source
    rules = rules_of("allow user:alice read,write,manage topic:*")
    decision = rules.decide(ALICE, *need)
    assert decision.need == source
    assert decision.allowed is (source.resource is TOPIC)


# Against twenty lines that are easy to check ----------------------------------------------------
def reference(rules: list[AccessRule], asker: User, need: Need) -> bool:
    """The same without an index: every rule is looked at."""
    need = source_of(need)
    subjects = {"*", *(["user:" + asker.user] if asker.user else ["anonymous"])}
    if asker.user:
        subjects |= {"role:" + each for each in asker.roles}
    allowed = denied = False
    for rule in rules:
        if rule.subject not in subjects or rule.resource is not need.resource:
            continue
        if rule.is_prefix and not need.name.startswith(rule.name):
            continue
        if not rule.is_prefix and rule.name != need.name:
            continue
        if rule.effect is DENY:
            denied = denied or need.right in rule.rights
        else:
            allowed = allowed or need.right in rule.rights or need.right is DESCRIBE
    return allowed and not denied


USERS = ["a", "b"]
NAMES = ["", "x", "xy", "xyz", "y"]
SUBJECTS = ["*", "anonymous", *(f"{kind}:{name}" for kind in ("user", "role") for name in USERS)]


@st.composite
def some_rule(draw: st.DrawFn) -> AccessRule:
    resource = draw(st.sampled_from(Resource))
    name, is_prefix = "", False
    if resource is not CLUSTER:
        name = draw(st.sampled_from(NAMES))
        is_prefix = not name or draw(st.booleans())
    return AccessRule(
        draw(st.sampled_from(RuleEffect)),
        draw(st.sampled_from(SUBJECTS)),
        draw(st.frozensets(st.sampled_from(Right), min_size=1)),
        resource,
        name,
        is_prefix,
    )


SOME_RULES = st.lists(some_rule(), max_size=25)
SOME_USER = st.builds(
    User, st.sampled_from(["", *USERS]), st.frozensets(st.sampled_from([*USERS, "c"]))
)
SOME_NEED = st.one_of(
    st.builds(
        Need,
        st.sampled_from(Right),
        st.sampled_from([TOPIC, GROUP, ID]),
        st.sampled_from([*NAMES[1:], "xyzz", "z"]),
    ),
    st.builds(Need, st.sampled_from(Right), st.just(CLUSTER)),
    st.builds(
        Need,
        st.sampled_from(Right),
        st.just(TOPIC),
        st.sampled_from(["_vq.dlq.x", "_vq.retry.xy", "_vq.delayed", "_vq.probe.x"]),
    ),
)


@given(SOME_RULES, st.lists(st.tuples(SOME_USER, SOME_NEED), min_size=1, max_size=30))
def test_the_index_decides_as_a_look_at_every_rule(
    rules: list[AccessRule], asked: list[tuple[User, Need]]
) -> None:
    indexed = AccessRules(rules)
    for asker, need in asked * 2:  # the second time it is remembered
        decision = indexed.decide(asker, *need)
        assert decision.allowed is reference(rules, asker, need)
        if decision.rule is not None:
            assert (decision.rule.effect is ALLOW) is decision.allowed
            assert decision.rule in set(indexed)


def rights_in(rules: AccessRules) -> set[tuple[object, Right]]:
    return {(each.key, right) for each in rules for right in each.rights}


@given(SOME_RULES, st.lists(st.tuples(st.booleans(), some_rule()), max_size=25))
def test_a_change_of_one_rule_loses_and_makes_no_other(
    begin: list[AccessRule], changes: list[tuple[bool, AccessRule]]
) -> None:
    """Above all no rule that denies."""
    rules = AccessRules(begin)
    wanted = rights_in(rules)
    for adds, rule in changes:
        own = {(rule.key, right) for right in rule.rights}
        if adds:
            rules, wanted = rules.adding([rule]), wanted | own
        elif own <= wanted:
            rules, wanted = rules.removing([rule]), wanted - own
        else:
            with pytest.raises(InvalidArgument, match="there is no rule"):
                rules.removing([rule])
        assert rights_in(rules) == wanted
        assert AccessRules(AccessRule.parse(str(each)) for each in rules) == rules


def test_removing_one_right_keeps_the_others_of_its_rule() -> None:
    rules = rules_of("deny * read,write topic:a", "deny * read,write topic:a*")
    rules = rules.removing([AccessRule.parse("deny * write topic:a")])
    assert [str(each) for each in rules] == ["deny * read topic:a", "deny * read,write topic:a*"]


# Bounds -----------------------------------------------------------------------------------------
def test_there_is_a_bound_of_rules() -> None:
    many = [AccessRule.parse(f"allow user:u{n} read topic:t{n}") for n in range(RULES_MAX)]
    rules = AccessRules(many)
    with pytest.raises(InvalidArgument, match="10001 rules; a cluster has at most 10000"):
        rules.adding([AccessRule.parse("allow user:one read topic:more")])
    assert len(rules.adding([AccessRule.parse("allow user:u7 write topic:t7")])) == RULES_MAX


def test_names_that_nobody_has_do_not_fill_the_memory() -> None:
    rules = rules_of("allow user:alice read topic:a*")
    for number in range(2 * REMEMBERED_MAX):
        rules.decide(ALICE, READ, TOPIC, f"a{number}")
    assert rules.remembered <= REMEMBERED_MAX
    before = rules.remembered
    assert rules.decide(ALICE, READ, TOPIC, "a" * 100_000).allowed
    assert rules.remembered == before
    assert len(rules.decide(ALICE, WRITE, TOPIC, "a" * 100_000).need.text) < 200


def test_a_decision_among_ten_thousand_rules_costs_little() -> None:
    """The first one of a name, too. ``bench/security.py`` has the figures; this finds a walk."""
    rules = AccessRules(
        AccessRule.parse(f"allow user:u{n % 100} read topic:t{n}{'*' * (n % 2)}")
        for n in range(RULES_MAX)
    )
    began = time.perf_counter()
    for number in range(1_000):
        rules.decide(User(f"u{number % 100}"), READ, TOPIC, f"t{number}")
    assert time.perf_counter() - began < 1.0  # a walk over all takes 1 ms each


def test_a_resource_is_read_as_it_is_shown() -> None:
    assert parse_resource("topic:orders*") == (TOPIC, "orders", True)
    assert parse_resource("topic:*") == (TOPIC, "", True)
    assert parse_resource("cluster") == (CLUSTER, "", False)
