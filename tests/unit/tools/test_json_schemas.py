"""docs/reference/json has the schema of every command, as the package has it."""

import json

from support.tool import load_tool

from vq.cli.main import commands
from vq.cli.schemas import schemas

tool = load_tool("json_schemas")
#: They run until they are stopped and print nothing.
WITHOUT = {"broker", "gateway", "lag-exporter", "local serve", "worker"}
#: Lines of standard error, and a command with another result.
MORE = {
    "error",
    "remark",
    "balance load --partitions",
    "balance load --topics",
    "balance progress --all",
    "cluster diverged --delete",
    "dlq read --content",
    "local list --damaged",
    "topic list --deleted",
    "tx show --content",
}


def test_every_command_has_a_schema() -> None:
    assert {name for name, _ in commands()} - WITHOUT == set(schemas()) - MORE


def test_the_files_are_those_of_the_package() -> None:
    """`make docs` writes them; none is left of a command that is gone."""
    written = {path.name: path.read_text() for path in tool.TARGET.glob("*.json")}
    assert written == tool.render()


def test_no_field_is_a_count_of_milliseconds() -> None:
    def fields(schema: object) -> list[str]:
        if isinstance(schema, list):
            return [each for inner in schema for each in fields(inner)]
        if not isinstance(schema, dict):
            return []
        own = list(schema.get("properties", {}))
        return own + [each for inner in schema.values() for each in fields(inner)]

    rendered = tool.render()
    found = {name: fields(json.loads(content)) for name, content in rendered.items()}
    assert all(found.values())
    assert not [(name, each) for name in found for each in found[name] if each.endswith("_ms")]
