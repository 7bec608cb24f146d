"""Transactions: listed, shown, decided by an operator."""

from collections.abc import Mapping
from typing import Final

from starlette.responses import Response

from vq.console.pages.page import page, post
from vq.console.web.context import PageContext
from vq.console.web.forms import confirm
from vq.console.web.languages import N_
from vq.console.web.tables import Asked, Column, Kind, StateWord, table
from vq.errors import InvalidArgument
from vq.model import TransactionState
from vq.operations.messages.transactions import TransactionDescription
from vq.shown import shown

_STATES: Final[Mapping[TransactionState, StateWord]] = {
    TransactionState.UNKNOWN: StateWord(N_("unknown"), "warn"),
    TransactionState.OPEN: StateWord(N_("open"), "quiet"),
    TransactionState.PREPARED: StateWord(N_("prepared"), "warn"),
    TransactionState.COMMITTED: StateWord(N_("committed"), "ok"),
    TransactionState.ROLLED_BACK: StateWord(N_("rolled back"), "quiet"),
    TransactionState.FORGOTTEN: StateWord(N_("forgotten"), "quiet"),
}


def _state(each: TransactionDescription) -> StateWord:
    return _STATES[each.state]


@page("/c/{cluster}/transactions")
async def TRANSACTIONS(context: PageContext) -> Response:
    """List transactions."""
    ended, kept = context.query.get("ended") == "1", context.query.get("kept") == "1"
    columns: list[Column[TransactionDescription]] = [
        Column(
            "number",
            N_("Number"),
            lambda each: str(each.number),
            Kind.CODE,
            link=lambda each: context.path("transactions", str(each.number)),
        ),
        Column("state", N_("State"), _state, Kind.STATE),
        Column("owner", N_("Producer"), lambda each: each.owner or ""),
        Column("xid", N_("Xid"), lambda each: each.xid or "", Kind.CODE),
        Column("begun", N_("Begun"), lambda each: each.begun_ms, Kind.MOMENT),
        Column(
            "messages",
            N_("Messages"),
            lambda each: sum(part.messages for part in each.parts),
            Kind.COUNT,
        ),
        Column(
            "topics",
            N_("Topics"),
            lambda each: sorted({part.topic for part in each.parts})[:5],
            Kind.LIST,
            sorts=False,
        ),
        Column("by", N_("Decided by"), lambda each: each.by or ""),
    ]
    known, silent = await context.run("look_at_journals", ended=ended, kept=kept, older_than_s=0)
    found = table(
        columns,
        known,
        Asked.of(context.query),
        empty=N_("No transaction is open or prepared."),
        searched=lambda each: f"{each.number} {each.owner} {each.xid}",
    )
    return context.exported(found, "transactions") or context.page(
        "transactions.html",
        found=found,
        ended=ended,
        kept=kept,
        silent=list(map(str, silent)),
        command="vq tx list",
    )


def _number(context: PageContext) -> int:
    return context.number("a transaction", digits_max=19)


@page("/c/{cluster}/transactions/{number}")
async def TRANSACTION(context: PageContext) -> Response:
    """Show a transaction."""
    found = await context.run("describe_transaction", _number(context))
    return context.page(
        "transaction.html",
        found=found,
        state=_state(found),
        command=f"vq tx show {found.number}",
    )


_ACTS = {
    "commit": "commit_transaction",
    "rollback": "roll_back_transaction",
    "forget": "forget_transaction",
    "check": "check_transaction",
}


@post("/c/{cluster}/transactions/{number}/act")
async def ACT(context: PageContext) -> Response:
    """Decide a transaction, have its producer asked, or forget a kept decision."""
    number, act = _number(context), context.form.get("act", "")
    if act not in _ACTS:
        raise InvalidArgument(f"{shown(act)} is no act on a transaction")
    if act != "check":
        confirm(context.form, str(number))
    before = await context.run("describe_transaction", number)
    result = await context.run(_ACTS[act], number, before=before)
    if act == "check":
        context.say(N_("The producers of its group are asked; look again in a moment."))
    else:
        context.say(
            N_("Transaction %(number)s is %(state)s"),
            number=number,
            state=context.text(result.state.word),
        )
    return context.go("transactions", str(number))
