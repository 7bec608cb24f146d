"""``vq tx``: transactions: listed, shown, and decided by an operator."""

import time
from typing import Any, Final

import click

from vq.cli.base import text
from vq.cli.base.errors import CommandFailed
from vq.cli.base.json_schema import (
    MESSAGE_SCHEMA,
    Shape,
    as_text,
    having,
    maybe,
    record,
    shows,
    some,
)
from vq.cli.base.options import (
    Commands,
    Invocation,
    WholeNumber,
    command_options,
    flag,
    option,
    yes_option,
)
from vq.model import TransactionState
from vq.operations.messages.recovering import (
    WAIT_S,
    WaitingBranch,
    list_branches,
    recover_branches,
)
from vq.operations.messages.transactions import (
    PartOfTransaction,
    TransactionChecking,
    TransactionDescription,
    check_transaction,
    commit_transaction,
    describe_transaction,
    forget_transaction,
    look_at_journals,
    read_transaction,
    roll_back_transaction,
)


def _word(state: TransactionState) -> str:
    return state.name.lower()


def _age_s(begun_ms: int) -> float:
    return round(max(0.0, time.time() - begun_ms / 1_000), 3)


def _is_parked(found: TransactionDescription) -> bool:
    return found.checks is not None and found.checks.parked


_ROW: Final = Shape(
    TransactionDescription,
    "transaction=number journal state owner xid begun_s age_s=begun_ms ends_s decided_s by kept "
    "next stored messages bytes=size_bytes producer_group=checks.group checks=checks.sent "
    "checks_max=checks.most next_check_s=checks.next_ms parked=",
    transaction=as_text,
    state=_word,
    age_s=_age_s,
    parked=_is_parked,
)
_PART: Final = Shape(PartOfTransaction, "topic partition messages bytes=size_bytes stored offset")


@click.group(cls=Commands)
def tx() -> None:
    """List and show transactions, and decide those that hang."""


class TransactionNumber(click.ParamType[int]):
    """The number of a transaction, as ``vq tx list`` prints it."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number."""
        number = int(value) if str(value).isascii() and str(value).isdecimal() else 0
        if not 1 <= number < 2**63:
            self.fail(
                f"{value!r} is no number of a transaction, such as 7318349394477056, as `vq tx "
                "list` and TransactionInDoubt tell it"
            )
        return number


@tx.command(name="list")
@flag("--ended", "Also the last ones that have ended, 1,000 a journal.")
@flag("--kept", "Also decisions that are kept until `vq tx forget` takes them.")
@option(
    "--older-than SECONDS",
    "Only those that began so long ago.",
    WholeNumber(min=0, max=10**9),
    default=0,
)
@shows(some(having(_ROW, parts=int)))
@command_options
def list_(invocation: Invocation, older_than: int, *, ended: bool, kept: bool) -> None:
    """List the transactions that have not ended, the oldest at the top.

    `open`: its producer sends more, or rolls it back; it is rolled back at `ends`. `prepared`: only
    a decision ends it. `committed`: not all of it is stored yet. `owner` is the transactional id of
    its producer. `by` is who decided, if it was not the producer. `next` is what comes next: its
    time-out, a decision, its storing; `forget`: its decision is kept, since an operator made it on
    one that was prepared, or since databases follow it. Of a half message, `checks` is
    how often its `producer_group` was asked, and `next_check` when it is again: `parked` is one
    that is asked no more, so that `vq tx check`, `commit` or `rollback` must go on.

    Exit code 1 if a partition of the journal does not answer: its transactions are left out.
    """
    found, silent = invocation.call(
        look_at_journals, ended=ended, kept=kept, older_than_s=older_than
    )
    output = invocation.output
    if not output.document([{**_ROW(each), "parts": len(each.parts)} for each in found]):
        rows = [{**_ROW(each), **_people(each), "parts": len(each.parts)} for each in found]
        output.table(rows, columns=_COLUMNS, optional=_OPTIONAL)
        if not rows and not silent:
            output.remark("no transaction" if ended or kept else "no transaction is under way")
    for error in silent:
        output.remark(error.message)
    if silent:
        raise CommandFailed(
            f"{len(silent)} partition(s) of the journal do not answer, so transactions are left "
            "out; `vq cluster status` shows which brokers are up"
        )


_COLUMNS: Final = (
    "transaction state age_s owner xid parts messages bytes by next ends producer_group "
    "checks next_check"
)
_OPTIONAL: Final = "owner xid by ends producer_group checks next_check"


def _people(found: TransactionDescription) -> dict[str, Any]:
    """What people read as moments."""
    return {
        "begun": text.utc(found.begun_ms),
        "ends": None if found.ends_ms is None else text.utc(found.ends_ms),
        "decided": None if found.decided_ms is None else text.utc(found.decided_ms),
        "next_check": _next_check(found.checks),
    }


def _next_check(checks: TransactionChecking | None) -> str | None:
    if checks is None or (checks.next_ms is None and not checks.parked):
        return None
    return "parked" if checks.next_ms is None else text.utc(checks.next_ms)


_SHOWN: Final = having(_ROW, owner_epoch=int, parts=some(_PART))


@tx.command()
@click.argument("number", type=TransactionNumber())
@flag("--content", "The messages that wait, too: ids, keys, contents.")
@shows(_SHOWN, content=having(_SHOWN, waiting=some(MESSAGE_SCHEMA)))
@command_options
def show(invocation: Invocation, number: int, *, content: bool) -> None:
    """Show a transaction, and what it has for each partition.

    Also one of the last that have ended. With --content, its messages as long as not all of them
    are stored, up to 3.5 MiB: a half message has the id that its producer has kept.
    """
    found = invocation.call(describe_transaction, number)
    waiting = invocation.call(read_transaction, number) if content else []
    values = {**_ROW(found), "owner_epoch": found.owner_epoch}
    parts = _PART.all(found.parts)
    output = invocation.output
    if output.as_json:
        messages = {"waiting": [text.as_fields(each) for each in waiting]} if content else {}
        output.document({**values, "parts": parts, **messages})
        return
    lines = {
        name: "-" if each is None else each for name, each in {**values, **_people(found)}.items()
    }
    output.record(lines, shown=_LINES)
    if parts:
        output.title("")
        output.table(
            parts,
            columns=" ".join(_PART.fields),
            optional="offset",
        )
    for message in waiting:
        output.line("")
        fields = text.as_record(message)
        output.record({name: each for name, each in fields.items() if name not in _OF_A_PLACE})


_OF_A_PLACE: Final = frozenset(("stored", "offset", "next_offset"))
_LINES: Final = (
    "transaction journal state owner owner_epoch xid begun age_s ends decided by kept next "
    "stored messages bytes producer_group checks checks_max next_check"
)
_DECIDED: Final = record(
    done=bool, transaction=str, state=str, by=maybe(str), stored=bool, messages=int
)


@tx.command()
@click.argument("number", type=TransactionNumber())
@yes_option
@shows(_DECIDED)
@command_options
def commit(invocation: Invocation, number: int, *, yes: bool) -> None:
    """Commit a transaction that is prepared: all its messages are stored.

    One that is open cannot be: its producer may still send messages of it. Your name is kept with
    the decision. Other resources that have a part in the transaction are not told: look first what
    became of it there.
    """
    _decide(invocation, number, TransactionState.COMMITTED, yes=yes)


@tx.command()
@click.argument("number", type=TransactionNumber())
@yes_option
@shows(_DECIDED)
@command_options
def rollback(invocation: Invocation, number: int, *, yes: bool) -> None:
    """Roll back a transaction that is open or prepared: none of its messages is stored.

    Its producer is told when it goes on. Your name is kept with the decision. Other resources that
    have a part in the transaction are not told: look first what became of it there.
    """
    _decide(invocation, number, TransactionState.ROLLED_BACK, yes=yes)


@tx.command()
@click.argument("number", type=TransactionNumber())
@yes_option
@shows(_DECIDED)
@command_options
def forget(invocation: Invocation, number: int, *, yes: bool) -> None:
    """Have the decision on a transaction kept no longer.

    It is kept if an operator made it on one that was prepared, or if databases follow it. Forget it
    once its producer, or all its databases, know it: `vq tx recover` takes what nobody knows for
    rolled back.
    """
    _decide(invocation, number, TransactionState.FORGOTTEN, yes=yes)


_BRANCH: Final = Shape(
    WaitingBranch,
    "transaction xid database age_s=begun_ms state end done",
    transaction=as_text,
    age_s=_age_s,
    state=_word,
)


@tx.command()
@option(
    "--database URL",
    "Of SQLAlchemy, such as `postgresql://user@host/shop` or `mariadb://user@host/shop`.",
    required=True,
)
@option(
    "--older-than SECONDS",
    "Leave what is not decided and began later: its program may go on.",
    WholeNumber(min=0, max=10**9),
    default=WAIT_S,
)
@yes_option
@shows(some(_BRANCH))
@command_options
def recover(invocation: Invocation, database: str, older_than: int, *, yes: bool) -> None:
    """Finish what programs left in a database that ended in the middle of a commit.

    Only transactions of `vq.distributed` and `vq.datamanager` with this cluster are looked at. For
    each that is prepared in the database, the journal is asked. What that has committed is
    committed, all else is rolled back; what it has not decided, and is old, in the journal first:
    its program is told if it is still there. `state` is what the journal says, `end` what that
    means. Run it once for each database that takes part.
    """
    act = recover_branches if yes else list_branches
    found = invocation.call(act, database, older_than_s=older_than)
    rows = _BRANCH.all(found)
    output = invocation.output
    if not output.document(rows):
        columns = "transaction age_s database state end done"
        output.table(rows, columns=columns, optional="database")
        if not rows:
            output.remark("nothing is prepared there for this cluster")
    if rows and not yes:
        invocation.only_planned()


@tx.command()
@click.argument("number", type=TransactionNumber())
@yes_option
@shows(record(done=bool, transaction=str, state=str, checks=maybe(int), parked=bool))
@command_options
def check(invocation: Invocation, number: int, *, yes: bool) -> None:
    """Ask producers again what is to become of a half message, also of one that is parked.

    From now on any producer of its group with a listener is asked, as if nobody had been asked yet.
    """
    found = invocation.call(describe_transaction, number)
    if yes:
        invocation.call(check_transaction, number)
        found = invocation.call(describe_transaction, number)
    asked = "it is no half message"
    if found.checks is not None:
        of = f"{found.checks.sent} of {found.checks.most}"
        asked = f"producer group {found.checks.group} was asked {of} times"
    invocation.show_act(
        {
            "transaction": str(number),
            "state": _word(found.state),
            "checks": None if found.checks is None else found.checks.sent,
            "parked": _is_parked(found),
        },
        yes=yes,
        did=f"transaction {number} is checked again",
        plan=f"check transaction {number}, which is {found.state.word}; {asked}",
    )


def _decide(invocation: Invocation, number: int, state: TransactionState, *, yes: bool) -> None:
    found = invocation.call(describe_transaction, number)
    now, by, stored = found.state, found.by, found.stored
    if yes:
        decision = invocation.call(_ACTS[state][1], number)
        now, by, stored = decision.state, decision.by, decision.stored
    who = f" by {by}" if by else ""
    is_forgotten = "; that is forgotten" if state is TransactionState.FORGOTTEN else ""
    of = f"{found.messages} message(s) for {len(found.parts)} partition(s)"
    invocation.show_act(
        {
            "transaction": str(number),
            "state": _word(now),
            "by": by,
            "stored": stored,
            "messages": found.messages,
        },
        yes=yes,
        did=f"transaction {number} is {now.word}{who}{is_forgotten}",
        plan=f"{_ACTS[state][0]} transaction {number}, which is {now.word}, with {of}; this cannot "
        "be undone",
    )


_ACTS: Final = {
    TransactionState.COMMITTED: ("commit", commit_transaction),
    TransactionState.ROLLED_BACK: ("roll back", roll_back_transaction),
    TransactionState.FORGOTTEN: ("forget the decision on", forget_transaction),
}
