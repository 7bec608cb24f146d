"""docs/reference/api.md and errors.md are what the code says of itself, and nothing is left out.

The tables of settings in docs/operations.md are written by hand and compared here.
"""

import dataclasses
import inspect
import json
import re
from pathlib import Path
from types import ModuleType

import pytest
from support.tool import load_tool

import vq
from vq import admin, aio
from vq import errors as vq_errors
from vq.broker.config import BrokerConfig, ConnectionLimits
from vq.errors import VqError

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load_tool("api_reference")


def test_the_references_are_fresh(tool: ModuleType) -> None:
    assert (tool.REFERENCE / "api.md").read_text() == tool.api(), "run `make docs`"
    assert (tool.REFERENCE / "errors.md").read_text() == tool.errors(), "run `make docs`"


def test_every_public_name_has_its_section(tool: ModuleType) -> None:
    page = tool.api()
    for title, module in (("vq", vq), ("vq.aio", aio), ("vq.admin", admin)):
        for name in module.__all__:
            assert f"### `{title}.{name}`\n" in page


def test_every_public_method_says_what_it_does() -> None:
    """An empty text on the page would be of no help."""
    for module in (vq, aio, admin):
        for name in module.__all__:
            subject = getattr(module, name)
            members = vars(subject).items() if inspect.isclass(subject) else ()
            for member_name, member in members:
                if callable(member) and not member_name.startswith("_"):
                    assert member.__doc__, f"{name}.{member_name}"


def test_every_error_has_its_row(tool: ModuleType) -> None:
    page = tool.errors()
    for name, each in vars(vq_errors).items():
        if inspect.isclass(each) and issubclass(each, VqError) and each is not VqError:
            status = "" if each.status is None else each.status
            assert f"| {status} | {name} |" in page


def test_every_setting_of_a_broker_is_in_the_operators_table_with_its_default() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", page, re.MULTILINE))
    for item in [*dataclasses.fields(BrokerConfig), *dataclasses.fields(ConnectionLimits)]:
        if item.name == "connections":
            continue  # the second table
        shown = rows.pop(item.name)
        if item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING:
            assert shown == "required", item.name
        elif item.default is not dataclasses.MISSING and item.default is not None:
            assert shown == f"`{json.dumps(item.default)}`", item.name
        else:
            assert "`" not in shown, f"{item.name} has no fixed default"
    settings = {"disk_warn", "rw", "ro", "sealed", "failed", "quarantined", "unknown"}
    assert not {name for name in rows if "_" in name} - settings, "settings that do not exist"
