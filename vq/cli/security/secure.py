"""``vq secure``: how a cluster is closed, step by step, see ``vq.operations.security``."""

from typing import Final

import click

from vq.cli.base.json_schema import Shape, shows
from vq.cli.base.options import Commands, Invocation, command_options
from vq.cli.base.output import Output
from vq.operations.cluster.security_facts import plan_security
from vq.operations.security.security_plan import (
    MissingAccess,
    SecurityPlan,
    SecurityStep,
    StepState,
)

_STEP: Final = Shape(SecurityStep, "step=name state standing todo settings commands page")
_MISSING: Final = Shape(
    MissingAccess, "user right resource requests last=last_ms because by_rule denied"
)
_PLAN: Final = Shape(
    SecurityPlan,
    "next=next.name steps unknown anonymous missing missing_left_out",
    steps=_STEP,
    missing=_MISSING,
)
#: Rows of a table for people.
_SHOWN: Final = 30


@click.group(cls=Commands)
def secure() -> None:
    """Say where the cluster stands between plain and closed, and what the next step is."""


@secure.command()
@shows(_PLAN)
@command_options
def plan(invocation: Invocation) -> None:
    """Say which steps are done, what is next with its commands, and what would be refused.

    The steps are TLS, identities in ZooKeeper, users, and rules of access. Each can be done while
    the cluster runs. Brokers tell which clients have no user, and which requests since their start
    the rules would refuse. Changes nothing.
    """
    found = invocation.call(plan_security)
    if not invocation.output.document(_PLAN(found)):
        _show(invocation.output, found)


def _show(output: Output, found: SecurityPlan) -> None:
    output.table(_STEP.all(found.steps), columns="step state standing")
    for name, why in found.unknown.items():
        output.remark(f"{name} does not tell how it takes clients: {why}")
    if found.unknown:
        output.line("")
        output.line("First have these brokers answer, then plan again: steps depend on them.")
    if found.next is not None:
        _show_step(output, found.next)
    elif not found.unknown:
        output.line("")
        output.line("Nothing is left to do.")
    if found.anonymous:
        output.line("")
        output.line("Clients without a user, refused if authentication is required:")
        output.table(
            [
                {"host": each.host, "client": each.client_id, "connections": each.connections}
                for each in found.anonymous[:_SHOWN]
            ],
            columns="host client connections",
        )
    if found.missing:
        output.line("")
        output.line("Rights that no rule gives, refused if authorization is enforced:")
        rows = [
            {**_MISSING(each), "user": each.user or "anonymous"} for each in found.missing[:_SHOWN]
        ]
        output.table(rows, columns="user right resource requests because")
        left_out = len(found.missing) - len(rows) + found.missing_left_out
        if left_out:
            output.line(f"... and {left_out} more; --json has up to 200 of each broker")


def _show_step(output: Output, step: SecurityStep) -> None:
    assert step.state is StepState.NEXT
    output.line("")
    output.line(f"Next: {step.name} ({step.page})")
    for number, each in enumerate(step.todo, 1):
        output.line(f"  {number}. {each}")
    if step.settings:
        output.line("")
        output.line("  [broker]")
        for each in step.settings:
            output.line(f"  {each}")
    if step.commands:
        output.line("")
        for each in step.commands:
            output.line(f"  {each}")
