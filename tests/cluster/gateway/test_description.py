"""The OpenAPI description says what the routes do."""

import json
from typing import Any

import httpx

from vq.gateway.app import Gateway


async def test_every_route_is_described_with_its_bodies_and_problems(
    gateway: Gateway, client: httpx.AsyncClient
) -> None:
    described = (await client.get("/openapi.json")).json()
    rows = {(each.path, each.method.lower()): each for each in gateway.routes.rows()}
    found = {
        (path, method): each
        for path, of in described["paths"].items()
        for method, each in of.items()
    }
    assert found.keys() == rows.keys()
    for where, operation in found.items():
        row = rows[where]
        answers = operation["responses"]
        assert operation["description"]
        assert operation["x-vq-right"] == f"{row.right} {row.resource}"
        assert ("requestBody" in operation) == (row.body is not None)
        assert {"400", "401", "403", "421", "429", "500", "503", str(row.status)} <= answers.keys()
        assert "422" not in answers
        for status, answer in answers.items():
            if status >= "400":
                assert "application/problem+json" in answer["content"]
            assert ("Retry-After" in answer.get("headers", {})) == (status in {"429", "503"})


async def test_every_reference_of_the_description_leads_somewhere_and_nothing_is_elsewhere(
    client: httpx.AsyncClient,
) -> None:
    text = (await client.get("/openapi.json")).text
    described = json.loads(text)
    assert "cdn" not in text.lower()

    def references(value: Any) -> list[str]:
        if isinstance(value, dict):
            ours = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
            return ours + [each for of in value.values() for each in references(of)]
        if isinstance(value, list):
            return [each for of in value for each in references(of)]
        return []

    schemas = described["components"]["schemas"]
    named = {each.removeprefix("#/components/schemas/") for each in references(described)}
    assert named == schemas.keys()
