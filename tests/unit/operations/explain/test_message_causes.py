"""Why a group did not get a message: each cause, and what is not known."""

from dataclasses import replace
from typing import Any

import pytest
from support.explained import CONSUMED, NOW_S, PARTITIONS, asked, at

from vq.operations.explain import message_causes
from vq.operations.explain.answers import NOT_KNOWN
from vq.operations.explain.message_causes import MessageFacts, MessageState
from vq.operations.messages.settling import LetterState

STORED = MessageFacts(
    at=CONSUMED,
    asked="7",
    state=MessageState.STORED,
    id=7,
    offset=50,
    tag="red",
    sent_ms=int(NOW_S * 1000) - 9_000,
    stored_ms=int(NOW_S * 1000) - 8_000,
    matches=True,
)
NOWHERE = {
    str(state): replace(STORED, state=state, offset=None, transaction=9, detail="open")
    for state in (
        MessageState.DELAYED,
        MessageState.UNDECIDED,
        MessageState.ROLLED_BACK,
        MessageState.RECALLED,
        MessageState.DELETED,
        MessageState.DAMAGED,
        MessageState.NOT_REPLICATED,
        MessageState.NOT_YET,
        MessageState.NO_MESSAGE,
        MessageState.NOT_STORED,
    )
}
BLOCKING = {
    cause: replace(STORED, at=facts, offset=600 if cause != "beyond_end" else 950)
    for cause, facts in PARTITIONS.items()
    if cause
    not in {
        *("no_group", "not_read", "not_readable", "not_replicated", "filter_matches_nothing"),
        *("overtaken", "at_end", "broadcasting", "consumed"),
    }
}
MESSAGES = {
    "no_group": replace(STORED, at=PARTITIONS["no_group"]),
    "not_read": replace(STORED, at=PARTITIONS["not_read"]),
    "not_readable": replace(STORED, at=PARTITIONS["not_readable"]),
    **NOWHERE,
    "filtered": replace(STORED, at=at(p_filter="blue"), matches=False),
    "dead_letter": replace(STORED, letter=LetterState.OPEN, detail="ValueError"),
    "retries": replace(STORED, retries=True),
    "began_behind": replace(STORED, starts_latest=True, first_claim_ms=int(NOW_S * 1000) - 1_000),
    "handled_ahead": replace(STORED, offset=200, ahead=True),
    "handled": replace(STORED, reset_ms=5),
    **BLOCKING,
    "broadcasting": replace(STORED, at=PARTITIONS["broadcasting"]),
    "not_reached": replace(STORED, offset=200),
}


@pytest.mark.parametrize("cause", MESSAGES)
def test_why_a_group_did_not_get_a_message(cause: str) -> None:
    found = asked(message_causes.TABLE, MESSAGES[cause])
    assert (found.found.cause, found.is_certain) == (cause, True)
    assert message_causes.message_told(MESSAGES[cause])


def test_every_cause_of_a_message_has_its_case() -> None:
    assert list(MESSAGES) == [each.cause for each in message_causes.TABLE]


@pytest.mark.parametrize(
    ("changes", "open_causes"),
    [
        ({"letters_known": False}, ("dead_letter", "retries")),
        ({"at": at(p_filter="MessageFilter own"), "matches": None}, ("filtered",)),
        ({"starts_latest": True}, ("began_behind",)),
    ],
)
def test_that_a_message_was_handled_is_not_certain_while_something_is_not_known(
    changes: dict[str, Any], open_causes: tuple[str, ...]
) -> None:
    found = asked(message_causes.TABLE, replace(STORED, **changes))
    assert (found.found.cause, found.is_certain, found.open) == ("handled", False, open_causes)


def test_a_message_that_could_not_be_looked_for_has_no_certain_answer() -> None:
    found = asked(message_causes.TABLE, replace(STORED, state=None, offset=None))
    assert (found.found.cause, found.is_certain) == (NOT_KNOWN, False)
