"""``vq acl``: the rules of access, see ``vq.operations.security``."""

from collections.abc import Sequence
from typing import Final

import click

from vq.cli.base.json_schema import Shape, having, shows, some
from vq.cli.base.options import Commands, Invocation, command_options, flag, option
from vq.cli.security.unknown import remark_unknown
from vq.operations.security.access import (
    add_access_rules,
    decide_access,
    list_access_rules,
    remove_access_rules,
)
from vq.security.rules import (
    NEEDED,
    AccessDecision,
    AccessRule,
    Right,
    RuleEffect,
    check_subject,
    parse_resource,
    parse_rights,
    subject_of,
)


def _words(rights: str) -> list[str]:
    return rights.split(",")


_RULE: Final = Shape(AccessRule, "effect subject rights=rights_text resource=about", rights=_words)
_COLUMNS: Final = "effect subject rights resource"

_subject = click.argument("subject")
_rights = click.argument("rights")
_resource = click.argument("resource")
_deny = flag("--deny", "The rule denies the rights.")


@click.group(cls=Commands)
def acl() -> None:
    """Add, remove, list and test the rules that say who may do what at the brokers."""


@acl.command()
@_subject
@_rights
@_resource
@_deny
@shows(some(_RULE))
@command_options
def add(invocation: Invocation, subject: str, rights: str, resource: str, deny: bool) -> None:
    """Allow a subject to do something; or forbid it, with --deny.

    SUBJECT is user:NAME, role:NAME, anonymous (whoever has proved no name) or '*' (everybody).
    RIGHTS are some of describe, read, write and manage, with commas between. RESOURCE is
    topic:NAME, group:NAME, transactional-id:NAME or cluster; 'topic:NAME*' is all topics whose
    names begin so.

    A rule that denies wins over all that allow. Brokers with authorization = "enforced" obey the
    rules at once; those with "permissive" log and count what they would refuse.
    """
    rule = _rule(subject, rights, resource, deny=deny)
    before = invocation.call(list_access_rules)
    rules = invocation.call(add_access_rules, [rule])
    done = "there already" if rules == before else "added"
    _show_change(invocation, rules, f"{done}: {rule}")
    remark_unknown(invocation, subject)
    if unused := [each for each in Right if each in rule.rights - NEEDED[rule.resource]]:
        invocation.output.remark(
            f"no request needs {' or '.join(unused)} on a {rule.resource}; "
            "docs/howto/rules.md says what each program needs"
        )


@acl.command()
@_subject
@_rights
@_resource
@_deny
@shows(some(_RULE))
@command_options
def remove(invocation: Invocation, subject: str, rights: str, resource: str, deny: bool) -> None:
    """Remove a rule, or some rights of it; all others stay.

    The arguments are those of `vq acl add`. Reads that wait end if their right is withdrawn.
    """
    rule = _rule(subject, rights, resource, deny=deny)
    _show_change(invocation, invocation.call(remove_access_rules, [rule]), f"removed: {rule}")


@acl.command(name="list")
@option("--subject SUBJECT", "Only the rules of this subject.")
@shows(some(_RULE))
@command_options
def list_(invocation: Invocation, subject: str | None) -> None:
    """List the rules of access."""
    if subject is not None:
        check_subject(subject)
    rules = invocation.call(list_access_rules)
    held = len(rules)
    if subject is not None:
        rules = [each for each in rules if each.subject == subject]
    output = invocation.output
    if output.document(_RULE.all(rules)):
        return
    rows = [{**_RULE(each), "rights": each.rights_text} for each in rules]
    output.table(rows, columns=_COLUMNS)
    if not rules and held:
        output.remark(f"no rule has the subject {subject}; rules of others: {held}")
    elif not rules:
        output.remark(
            "there are no rules: brokers with authorization = enforced refuse everything to all "
            "but super users"
        )


_DECISION: Final = Shape(
    AccessDecision,
    "allowed decided_right=need.right decided_resource=need.about rule",
    rule=_RULE,
)


@acl.command()
@click.argument("who", metavar="USER")
@click.argument("right", type=click.Choice([str(each) for each in Right]))
@_resource
@option(
    "--role NAME ... as roles",
    "A role of the user, instead of those stored for it; several are taken.",
)
@shows(having(_DECISION, user=str, right=str, resource=str))
@command_options
def test(invocation: Invocation, who: str, right: str, resource: str, roles: Sequence[str]) -> None:
    """Say whether a user may do something, and which rule decides.

    USER is a name, or anonymous. A topic of vq's own has the rules of its source: the answer says
    which that is. Super users of brokers may do everything, which no rule shows.

    Exit code 1 if it is refused.
    """
    decision = invocation.call(decide_access, who, right, resource, roles or None)
    if not roles:
        remark_unknown(invocation, subject_of(who))
    output, need = invocation.output, decision.need
    if output.as_json:
        asked = {"user": who, "right": right, "resource": resource}
        output.document({**_DECISION(decision), **asked})
    else:
        inherited = need.about != resource
        source = f", which needs {need.text}" if inherited else ""
        verdict = "allowed" if decision.allowed else "refused"
        output.line(f"{verdict}: {who} {right} {resource}{source}; {decision.because}")
    if not decision.allowed:
        raise click.exceptions.Exit(1)


def _rule(subject: str, rights: str, resource: str, *, deny: bool) -> AccessRule:
    effect = RuleEffect.DENY if deny else RuleEffect.ALLOW
    return AccessRule(effect, subject, parse_rights(rights), *parse_resource(resource))


def _show_change(invocation: Invocation, rules: Sequence[AccessRule], done: str) -> None:
    output = invocation.output
    if not output.document(_RULE.all(rules)):
        output.remark(f"{done}; rules now: {len(rules)}")
