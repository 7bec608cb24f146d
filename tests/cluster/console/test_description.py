"""Requests made of the API's description, good and bad ones, get what it says.

The short form makes a bad one of every eighth operation; good ones are in the test of schemas. The
long form makes many of both kinds of each::

    VQ_LONG=1 pytest tests/cluster/console/test_description.py
"""

import asyncio
import os
from typing import Any

import httpx
import hypothesis
import pytest
from support.cases import case
from support.console import BASE, Browser, RunningConsole
from support.generated import generated_by
from support.operation_schemas import OperationSchemas

from vq.testing.waiting import WAIT_S

LONG = os.environ.get("VQ_LONG") == "1"
EXAMPLES = 50 if LONG else 1
#: What schemathesis compares with the description; schemas are compared here, more strictly.
CONFORMANCE = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "negative_data_rejection",
)
#: Left out: they wait as long as they are asked to, or read the whole cluster.
WAITING = frozenset({"measure_allocation", "plan_allocation", "drain_topic"})


def made_requests(operation: Any, mode: Any) -> list[Any]:
    """Return requests of an operation."""
    found: list[Any] = []

    @generated_by(EXAMPLES, anew=LONG)
    @hypothesis.given(made=operation.as_strategy(generation_mode=mode))
    def make(made: Any) -> None:
        made.path_parameters["cluster"] = "test"
        found.append(made)

    make()
    return found


async def answer_to(made: Any, browser: Browser) -> httpx.Response:
    """Send a request as a page of the console does."""
    asked = made.as_transport_kwargs(base_url=f"{BASE}/api")
    headers = {
        name: value
        for name, value in dict(asked["headers"]).items()
        if name.lower() not in ("authorization", "cookie")
    }
    content = {"json": asked["json"]} if "json" in asked else {"content": asked.get("data") or b""}
    async with asyncio.timeout(WAIT_S):
        return await browser.http.request(
            asked["method"],
            asked["url"],
            params=asked.get("params"),
            headers={**headers, "x-csrf-token": browser.csrf},
            **content,
        )


@pytest.mark.slow
async def test_requests_made_of_the_description_get_what_it_says(console: RunningConsole) -> None:
    import schemathesis
    from schemathesis.checks import CHECKS, load_all_checks
    from schemathesis.generation import GenerationMode

    load_all_checks()
    checks = [CHECKS.get_one(name) for name in CONFORMANCE]
    browser = console.browser()
    await browser.get("/c/test/topics/t")
    description = (await browser.http.get("/api/openapi.json")).json()
    schemas = OperationSchemas(description)
    modes = [GenerationMode.NEGATIVE, *([GenerationMode.POSITIVE] if LONG else [])]
    statuses: set[int] = set()
    operations = [
        each.ok() for each in schemathesis.openapi.from_dict(description).get_all_operations()
    ]
    for operation in operations if LONG else operations[::8]:
        name = operation.path.rpartition("/")[2]
        for mode in modes:
            for made in [] if name in WAITING else made_requests(operation, mode):
                with case(name, str(mode), str(made.body)[:500]):
                    answer = await answer_to(made, browser)
                    statuses.add(answer.status_code)
                    made.validate_response(answer, checks=checks)
                    assert schemas.wrong(name, answer.status_code, answer.json()) == []
    assert 400 in statuses
