"""From facts of a cluster to the next step that closes it."""

from dataclasses import replace
from typing import Any

import pytest
from support.cases import case

from vq.operations.security.security_plan import (
    AnonymousSeen,
    MissingAccess,
    NodeSecurity,
    SecurityFacts,
    StepState,
    security_plan,
)

PLAIN = NodeSecurity(
    "b1/n1", authentication="off", authorization="off", tls="none", tls_client_certificates="none"
)
CLOSED = replace(
    PLAIN,
    tls="required",
    authentication="required",
    authorization="enforced",
    zookeeper_tls=True,
    zookeeper_auth=True,
    super_users=("root",),
)
ALL = SecurityFacts((CLOSED,), users=("anna",), rules=3, identities=True)
LACKS = MissingAccess("anna", "write", "topic:orders", 9, 1, "no rule allows it", True, False)


def closed_but(*nodes: NodeSecurity, **facts: Any) -> SecurityFacts:
    """The closed cluster, with something else."""
    return replace(ALL, **({"nodes": nodes} if nodes else {}), **facts)


def test_each_standing_has_its_next_step() -> None:
    """One thing is open at a time; the slowest node decides."""
    for facts, step, settings, commands in (
        (closed_but(replace(CLOSED, tls="none")), "tls", 'tls_mode = "accepted"', ""),
        (closed_but(CLOSED, replace(CLOSED, tls="none")), "tls", "tls_certificate", ""),
        (closed_but(replace(CLOSED, tls="accepted")), "tls", 'tls_mode = "preferred"', ""),
        (closed_but(replace(CLOSED, tls="preferred")), "tls", 'tls_mode = "required"', ""),
        (closed_but(identities=False), "zookeeper", "", "vq zk secure --operators"),
        (closed_but(open_nodes=("topics",)), "zookeeper", "", "vq zk secure --yes"),
        (closed_but(replace(CLOSED, authentication="loopback")), "users", '"optional"', ""),
        (closed_but(replace(CLOSED, authentication="off")), "users", '"optional"', ""),
        (closed_but(replace(CLOSED, authentication="optional")), "users", '"required"', ""),
        (
            closed_but(replace(CLOSED, authentication="optional"), users=()),
            "users",
            "",
            "vq user add",
        ),
        (closed_but(users=()), "users", "", "vq user add"),
        (closed_but(replace(CLOSED, authorization="off")), "rules", '"permissive"', ""),
        (closed_but(replace(CLOSED, authorization="permissive")), "rules", '"enforced"', ""),
    ):
        with case(facts):
            plan = security_plan(facts)
            assert plan.next is not None
            assert plan.next.name == step
            assert settings in " ".join(plan.next.settings)
            assert commands in " ".join(plan.next.commands)
            others = {each.state for each in plan.steps if each.name != step}
            assert others == {StepState.DONE}


def test_a_closed_cluster_has_no_next_step() -> None:
    assert {each.state for each in security_plan(ALL).steps} == {StepState.DONE}
    assert security_plan(ALL).next is None


def test_steps_behind_the_next_one_come_later() -> None:
    states = [each.state for each in security_plan(SecurityFacts((PLAIN,))).steps]
    assert states == [StepState.NEXT, StepState.LATER, StepState.LATER, StepState.LATER]


def test_tls_is_not_needed_where_this_machine_alone_reaches_the_brokers() -> None:
    tls = security_plan(SecurityFacts((replace(PLAIN, loopback=True),))).steps[0]
    assert tls.state is StepState.NOT_NEEDED


def test_nothing_is_called_done_that_a_node_does_not_tell() -> None:
    plan = security_plan(closed_but(CLOSED, NodeSecurity("b2/n1", "Unreachable: no")))
    assert {each.state for each in plan.steps} == {StepState.UNKNOWN}
    assert all("b2/n1" in each.standing for each in plan.steps)
    assert plan.unknown == {"b2/n1": "Unreachable: no"}
    nobody = security_plan(SecurityFacts((NodeSecurity("b1/n1", "TimedOut: no"),)))
    assert nobody.steps[0].state is StepState.UNKNOWN


def test_the_tree_is_not_to_be_closed_while_a_node_does_not_tell_whether_it_names_itself() -> None:
    """A closed tree would lock out such a node: the step has no commands."""
    facts = closed_but(CLOSED, NodeSecurity("b2/n1", "Unreachable: no"), identities=False)
    zookeeper = security_plan(facts).steps[1]
    assert zookeeper.state is StepState.UNKNOWN
    assert zookeeper.commands == ()
    assert "b2/n1 would be locked out" in zookeeper.standing


def test_a_closed_tree_is_not_done_while_a_node_does_not_name_itself() -> None:
    facts = closed_but(CLOSED, replace(CLOSED, name="b2/n1", zookeeper_auth=False))
    plan = security_plan(facts)
    assert plan.next is not None
    assert plan.next.name == "zookeeper"
    assert "b2/n1 cannot use it" in plan.next.standing
    assert plan.next.todo[0] == "set VQ_ZOOKEEPER_AUTH of b2/n1"


def test_a_super_user_that_is_no_user_is_named() -> None:
    """A slip in ``super_users`` is seen before its user is needed."""
    plan = security_plan(closed_but(replace(CLOSED, super_users=("rooot", "anna"))))
    assert plan.steps[3].standing.endswith("super_users that are no users: rooot")
    assert "; 1 user" in plan.steps[2].standing


def test_clients_without_a_user_hold_back_the_step_that_would_refuse_them() -> None:
    seen = (AnonymousSeen("10.0.0.7", "shop", 2),)
    optional = replace(CLOSED, authentication="optional", anonymous_connections=2, anonymous=seen)
    plan = security_plan(closed_but(optional, replace(optional, name="b2/n1")))
    assert plan.next is not None
    assert plan.next.settings == ()
    assert "shop at 10.0.0.7" in plan.next.todo[0]
    assert plan.anonymous == (AnonymousSeen("10.0.0.7", "shop", 4),)


def test_missing_rights_become_one_command_for_each_user_and_resource() -> None:
    """Of all nodes together. None for what a rule denies, what is another user's, and nobody's."""
    nodes = (
        replace(
            CLOSED,
            authorization="permissive",
            missing=(
                LACKS,
                replace(LACKS, right="read", requests=2),
                replace(LACKS, right="describe"),
                replace(LACKS, user="", right="describe", resource="cluster", requests=1),
                replace(LACKS, resource="topic:no", denied=True, requests=1),
                replace(LACKS, resource="topic:theirs", by_rule=False, requests=1),
                replace(LACKS, resource="transactional-id:a'b", requests=1),
            ),
        ),
        replace(CLOSED, name="b2/n1", missing=(LACKS,), missing_left_out=3),
    )
    plan = security_plan(closed_but(*nodes))
    assert plan.missing[0] == replace(LACKS, requests=18)
    assert plan.missing_left_out == 3
    assert plan.next is not None
    assert plan.next.name == "rules"
    assert plan.next.settings == ()
    assert plan.next.commands == (
        "vq acl add user:anna read,write topic:orders",
        """vq acl add user:anna write 'transactional-id:a'"'"'b'""",
    )


def test_no_command_gives_more_than_was_asked_for() -> None:
    """Behind a name ``*`` makes it the beginning of names, so a name may not end with one."""
    asked = ("topic:*", "topic:orders*", "group:*", "transactional-id:pay*", "topic:'a…'", "topic:")
    missing = tuple(replace(LACKS, resource=each) for each in asked)
    node = replace(CLOSED, authorization="permissive", missing=missing)
    plan = security_plan(closed_but(node))
    assert plan.next is not None
    assert (plan.next.name, plan.next.settings, plan.next.commands) == ("rules", (), ())
    assert len(plan.missing) == len(asked), "they are told all the same"


def test_rules_are_not_to_be_enforced_while_some_of_what_is_missing_is_not_told() -> None:
    """Clients without a user may ask for so much that nothing of users is among what is told."""
    nobodys = tuple(replace(LACKS, user="", resource=f"topic:t{n}") for n in range(200))
    node = replace(CLOSED, authorization="permissive", missing=nobodys, missing_left_out=7)
    plan = security_plan(closed_but(node))
    assert plan.next is not None
    assert (plan.next.name, plan.next.settings) == ("rules", ())
    assert plan.next.todo[0].startswith("7 rights that were missing are not told")


@pytest.mark.parametrize("super_users", [(), ("root",)])
def test_a_super_user_is_named_before_rules_are_enforced(super_users: tuple[str, ...]) -> None:
    node = replace(CLOSED, authorization="permissive", super_users=super_users)
    plan = security_plan(closed_but(node))
    assert plan.next is not None
    assert any("super_users" in each for each in plan.next.settings) is not bool(super_users)
