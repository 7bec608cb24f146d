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
from vq import admin, aio, limits
from vq import errors as vq_errors
from vq.broker.config import BrokerConfig, ConnectionLimits
from vq.client.config import ProducerConfig, buffer_messages_of
from vq.errors import InvalidArgument, VqError

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


# The pages about a producer, written by hand ------------------------------------------------------
def rows(page: str, columns: int) -> list[list[str]]:
    """The rows of the tables with so many columns, without their heads."""
    found = []
    for line in (ROOT / "docs" / "reference" / page).read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == columns and cells[1] != "---":
            found.append(cells)
    return found


SETTINGS = {row[0].strip("`"): row[1:] for row in rows("producer-limits.md", 4)[1:]}


def test_every_setting_of_a_producer_has_its_row_and_default() -> None:
    fields = {item.name: item.default for item in dataclasses.fields(ProducerConfig)}
    assert list(SETTINGS) == list(fields)
    for name, default in fields.items():
        shown = SETTINGS[name][0]
        if default is None or default == ():
            assert shown.startswith("none"), name
        else:
            assert shown == f"`{json.dumps(default)}`", name
    assert str(buffer_messages_of(ProducerConfig())) in SETTINGS["buffer_messages"][0]


@pytest.mark.parametrize("name", [name for name, row in SETTINGS.items() if row[2].isdigit()])
def test_the_bounds_of_a_setting_are_those_of_its_row(name: str) -> None:
    _, least, most = SETTINGS[name]
    ProducerConfig(
        **{name: int(most), **({"retry_backoff_max_s": 1e6} if "backoff" in name else {})}
    )
    beyond = [int(most) + 1, 0 if least == "above 0" else None]
    if least.isdigit():
        ProducerConfig(**{name: int(least)})  # type: ignore[arg-type]
        beyond.append(int(least) - 1)
    for value in beyond:
        if value is not None:
            with pytest.raises(InvalidArgument, match=name):
                ProducerConfig(**{name: value})  # type: ignore[arg-type]


def test_the_limits_are_those_of_their_home() -> None:
    table = rows("producer-limits.md", 3)[1:]
    assert len(table) > 5
    for what, shown, home in table:
        number = re.match(r"\d+", shown)
        assert number, what
        assert int(number[0]) == getattr(limits, home.strip("`")), what


def test_every_rule_about_outcomes_names_tests_that_exist() -> None:
    named = set(
        re.findall(r"`(test_\w+)`", (ROOT / "docs" / "reference" / "outcomes.md").read_text())
    )
    assert len(named) > 15
    defined: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        defined |= set(re.findall(r"def (test_\w+)\(", path.read_text()))
    assert not named - defined
