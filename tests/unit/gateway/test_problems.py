"""Errors as HTTP statuses and problem documents."""

import json
import re
from pathlib import Path

import pytest
from support.cases import case

from vq import errors
from vq.errors import STATUSES, OutcomeUnknown, VqError
from vq.gateway import problems
from vq.gateway.problems import as_json, outcome_of, problem_of, retry_after_s, status_of


def own_errors() -> list[type[VqError]]:
    return [
        each
        for each in vars(problems).values()
        if isinstance(each, type) and issubclass(each, VqError) and "gateway" in each.__module__
    ]


def test_every_error_of_the_gateway_has_a_row_of_its_own() -> None:
    assert len(own_errors()) >= 10
    assert [each for each in own_errors() if each not in problems.STATUSES] == []


def test_every_status_of_the_protocol_has_a_fitting_one_of_http() -> None:
    """None falls through to 500, which says that the gateway itself has failed."""
    for number, cls in STATUSES.items():
        with case(number, cls.__name__):
            error = cls("text")
            status = status_of(error)
            assert 400 <= status < 600
            assert status != 500
            assert (status == 504) == isinstance(error, OutcomeUnknown)


def test_what_may_be_tried_again_says_when() -> None:
    for cls in [*STATUSES.values(), *own_errors(), errors.CoordinationError, errors.BufferFull]:
        error = cls("text")
        with case(cls.__name__):
            after = retry_after_s(error)
            assert (after is not None) == (error.retriable and status_of(error) in {429, 503})
            if status_of(error) == 429:
                assert after is not None
            if after is not None:
                assert problems.problem_headers(error)["Retry-After"] == str(after)


def test_only_what_is_certainly_not_done_is_refused() -> None:
    for cls in STATUSES.values():
        error = cls("text")
        with case(cls.__name__):
            if isinstance(error, OutcomeUnknown):
                assert outcome_of(error) == "unknown"
            if isinstance(error, errors.Refused):
                assert outcome_of(error) == "refused"
    assert outcome_of(errors.InvalidArgument("x")) == "refused"
    assert outcome_of(errors.CoordinationError("ZooKeeper went away")) == "unknown"


def test_a_problem_document_has_the_members_of_rfc_9457_and_those_of_vq() -> None:
    error = errors.OffsetOutOfRange("offset 9 is outside", details={"latest": 5})
    document = problem_of(error, more=1)
    assert document == {
        "type": "urn:vq:problem:OffsetOutOfRange",
        "title": "Requested Range Not Satisfiable",
        "status": 416,
        "detail": "offset 9 is outside",
        "code": "OffsetOutOfRange",
        "vq_status": 28,
        "outcome": "refused",
        "retriable": False,
        "hint": error.hint,
        "details": {"latest": 5},
        "more": 1,
    }


@pytest.mark.parametrize("text", ["x" * 100_000, "\ud800", "\x00\r\n\u2028"])
def test_a_text_of_a_request_in_an_error_is_cut_and_stays_json(text: str) -> None:
    written = as_json(problem_of(errors.InvalidArgument(text)))
    assert len(written) < 20_000
    assert json.loads(written)["detail"][:3] == text[:3]


def test_the_reference_has_the_status_of_every_error() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "http-gateway.md").read_text()
    told = {
        name: int(status)
        for status, names in re.findall(r"^\| (\d{3}) \| (.*) \|$", page, re.M)
        for name in re.findall(r"`(\w+)`", names)
        if status != "504"
    }
    assert told == {
        cls.__name__: status
        for cls, status in problems.STATUSES.items()
        if cls is not OutcomeUnknown
    }
