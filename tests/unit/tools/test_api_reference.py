"""The pages of docs/reference are what the code says of itself, and nothing is left out.

The tables of docs/reference/broker-settings.md are written by hand and compared here.
"""

import dataclasses
import importlib
import inspect
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pytest
from support.tool import load_tool

import vq
from vq import admin, aio, limits
from vq import errors as vq_errors
from vq.broker.base.config import BrokerConfig, ConnectionLimits
from vq.broker.partition.partition_state import RULES
from vq.client.config import (
    MESSAGE_OVERHEAD_BYTES,
    OnUnavailable,
    ProducerConfig,
    WhenFull,
    buffer_messages_of,
)
from vq.client.producer.intake.stages import Heads
from vq.client.producer.spread.partitioner import STRATEGIES
from vq.errors import InvalidArgument, MessageTooLarge, VqError
from vq.model import Compression, TopicSettings

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load_tool("api_reference")


def test_the_references_are_fresh(tool: ModuleType) -> None:
    for name, write in tool.PAGES.items():
        assert (tool.REFERENCE / name).read_text() == write(), "run `make docs`"


def test_a_default_that_is_a_text_is_shown_as_one_writes_it(tool: ModuleType) -> None:
    def function(
        one: "str" = "",
        two: Literal["a", "b"] = "a",
        three: "list[Path] | tuple[()]" = (),
    ) -> "Path":
        """Return a path: any one.

        Returns:
            A path: any one, of
            many.
        """
        raise NotImplementedError

    assert tool.signature_of("f", function) == (
        'f(one: str = "", two: Literal["a", "b"] = "a", three: list[Path] | tuple[()] = ()) -> Path'
    )
    assert tool.text_of(function).endswith("A path: any one, of\nmany.")


def test_every_public_name_has_its_section(tool: ModuleType) -> None:
    page = tool.api()
    for title, module in tool.PUBLIC:
        for name in module.__all__:
            assert f"### `{title}.{name}`\n" in page


def test_every_public_method_says_what_it_does(tool: ModuleType) -> None:
    """An empty text on the page would be of no help."""
    for _, module in tool.PUBLIC:
        for name in module.__all__:
            subject = getattr(module, name)
            if inspect.isclass(subject) or inspect.isfunction(subject):
                assert subject.__doc__, name
            members = vars(subject).items() if inspect.isclass(subject) else ()
            for member_name, member in members:
                if callable(member) and not member_name.startswith("_"):
                    assert member.__doc__, f"{name}.{member_name}"


def test_what_is_for_other_parts_of_vq_is_left_out(tool: ModuleType) -> None:
    """The word "only" in a docstring says so, of a method or of all that follows in a class."""
    section = tool.section_of("vq", "SendFuture", vq.SendFuture)
    assert re.findall(r"^#### `(\w+)", section, re.MULTILINE) == [
        "done",
        "result",
        "exception",
        "add_done_callback",
    ]
    assert "Attributes" not in section
    assert "check_outside" not in tool.api()


def test_every_error_has_its_row(tool: ModuleType) -> None:
    page = tool.errors()
    for name, each in vars(vq_errors).items():
        if inspect.isclass(each) and issubclass(each, VqError) and each is not VqError:
            status = "" if each.status is None else each.status
            assert f"| {status} | {name} |" in page


def test_the_page_of_errors_names_what_an_application_may_import(tool: ModuleType) -> None:
    """Not the module where a class happens to be; and it has all that `vq.admin` raises."""
    page = tool.errors()
    named = re.findall(r"^\| \w+ \| `(vq[\w.]*)\.(\w+)` \|", page, re.MULTILINE)
    for module, name in named:
        assert module in {"vq", "vq.admin", "vq.errors"}
        assert issubclass(getattr(importlib.import_module(module), name), VqError)
    raised = {name for name in admin.__all__ if name.endswith("Unknown")}
    assert raised | {"TopicExists", "UnknownGroup", "UnknownUser", "UserExists"} == {
        name for module, name in named if module == "vq.admin"
    }


def test_every_setting_of_a_broker_is_in_the_operators_table_with_its_default() -> None:
    page = (ROOT / "docs" / "reference" / "broker-settings.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", page, re.MULTILINE))
    for item in [*dataclasses.fields(BrokerConfig), *dataclasses.fields(ConnectionLimits)]:
        if item.name == "connections":
            continue  # the second table
        if item.name in ("tls", "zookeeper_tls"):
            for name in ("ca", "certificate", "key"):
                del rows[f"{item.name}_{name}"]
            continue
        shown = rows.pop(item.name)
        if item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING:
            assert shown == "required", item.name
        elif item.default is not dataclasses.MISSING and item.default is not None:
            assert shown == f"`{json.dumps(item.default)}`", item.name
        else:
            assert "`" not in shown, f"{item.name} has no fixed default"
    assert not rows, "settings that do not exist"


def test_the_page_of_topics_says_of_every_setting_when_a_change_takes_effect() -> None:
    page = (ROOT / "docs" / "howto" / "create-and-change-topics.md").read_text()
    _, table = page.split("| takes effect |\n")
    told = re.findall(r"`(\w+)`", "".join(re.findall(r"^\|([^|]*)\|", table, re.MULTILINE)))
    assert set(told) == {item.name for item in dataclasses.fields(TopicSettings)} | {"open"}


def test_the_page_of_a_cluster_says_what_to_do_about_everything_unsafe() -> None:
    page = (ROOT / "docs" / "howto" / "look-at-a-cluster.md").read_text()
    in_table = set(re.findall(r"^\|[^|]*\| `(\w+)` \|", page, re.MULTILINE))
    remarks = set(re.findall(r"`(\w+)`, ", page.split("kinds are remarks")[1]))
    assert in_table < set(admin.UnsafeKind)
    assert set(admin.UnsafeKind) - in_table <= remarks


def test_the_page_of_partitions_says_what_to_do_in_every_state_that_is_told() -> None:
    page = (ROOT / "docs" / "howto" / "bring-back-a-partition.md").read_text()
    told = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert set(told) == {rules.told for rules in RULES.values()} | {"unknown"}


# The pages about a producer, written by hand ------------------------------------------------------
def rows(page: str, columns: int) -> list[list[str]]:
    """The rows of the tables with so many columns, without their heads."""
    found = []
    for line in (ROOT / "docs" / "reference" / page).read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == columns and cells[1] != "---":
            found.append(cells)
    return found


NUMBERS = {row[0].strip("`"): row[1:] for row in rows("producer-limits.md", 4)[1:]}
_THREE = rows("producer-limits.md", 3)
CHOICES = {row[0].strip("`"): row[1:] for row in _THREE if row[0].startswith("`")}
SETTINGS = {**NUMBERS, **CHOICES}
HOMES = [row for row in _THREE if hasattr(limits, row[2].strip("`"))]


def texts_of(cell: str) -> list[str]:
    """The values in a cell that are text in quotes."""
    return re.findall(r'`"([\w-]+)"`', cell)


def test_every_setting_of_a_producer_has_its_row_and_default() -> None:
    fields = {item.name: item.default for item in dataclasses.fields(ProducerConfig)}
    assert sorted(SETTINGS) == sorted(fields)
    for name, default in fields.items():
        shown = SETTINGS[name][0]
        if default is None or default == ():
            assert shown.startswith("none"), name
        else:
            assert shown == f"`{json.dumps(default)}`", name
    assert str(buffer_messages_of(ProducerConfig())) in SETTINGS["buffer_messages"][0]


def test_every_number_has_its_bounds() -> None:
    numbers = {int, float, int | None}
    names = [each.name for each in dataclasses.fields(ProducerConfig) if each.type in numbers]
    assert list(NUMBERS) == names
    assert all(row[2].isdigit() for row in NUMBERS.values())


@pytest.mark.parametrize("name", NUMBERS)
def test_the_bounds_of_a_setting_are_those_of_its_row(name: str) -> None:
    _, least, most = NUMBERS[name]
    ProducerConfig(
        **{name: int(most), **({"retry_backoff_max_s": 1e6} if "backoff" in name else {})}
    )
    beyond: list[float] = [int(most) + 1]
    if least.isdigit():
        ProducerConfig(**{name: int(least)})  # type: ignore[arg-type]
        beyond.append(int(least) - 1)
    elif least == "above 0":
        ProducerConfig(**{name: 1e-6})  # type: ignore[arg-type]
        beyond.append(0)
    else:
        assert least == "`retry_backoff_s`"
        ProducerConfig(retry_backoff_s=0.5, retry_backoff_max_s=0.5)
        beyond.append(ProducerConfig().retry_backoff_s / 2)
    for value in beyond:
        with pytest.raises(InvalidArgument, match=name):
            ProducerConfig(**{name: value})  # type: ignore[arg-type]


def test_the_values_of_a_choice_are_those_of_its_row() -> None:
    known: dict[str, list[str]] = {
        "when_full": list(WhenFull),
        "compression": list(Compression),
        "partitioner": list(STRATEGIES),
        "on_unavailable": list(OnUnavailable),
    }
    for name, values in known.items():
        assert texts_of(CHOICES[name][1]) == values
        for value in values:
            ProducerConfig(**{name: value})  # type: ignore[arg-type]
    assert {name for name, row in CHOICES.items() if texts_of(row[1])} == set(known)


def test_ordered_excludes_what_the_page_says() -> None:
    def is_taken(**others: Any) -> bool:
        try:
            ProducerConfig(ordered=True, **others)
        except InvalidArgument:
            return False
        return True

    assert [name for name in STRATEGIES if is_taken(partitioner=name)] == ["hash"]
    assert [each for each in OnUnavailable if is_taken(on_unavailable=each)] == ["wait", "fail"]


def test_the_default_time_outs_are_those_of_the_page() -> None:
    found = {}
    for names, shown in rows("producer-limits.md", 2)[1:]:
        calls = r"`(send\w*|request|reply|tpc_\w+|cancel|flush|commit|rollback|result|exception)`"
        for name in re.findall(calls, names):
            found[name] = shown
    own = vars(vq.MessageProducer) | vars(vq.SendFuture) | {"send": aio.MessageProducer.send}
    for name, shown in found.items():
        default = inspect.signature(own[name]).parameters["timeout"].default
        assert shown == f"{default:g} s" if default is not None else shown.startswith("none"), name
    assert set(found) == {
        name
        for name, method in own.items()
        if inspect.isfunction(method) and "timeout" in inspect.signature(method).parameters
        if not name.startswith("_")
    }


def test_the_limits_are_those_of_their_home() -> None:
    assert len(HOMES) + len(CHOICES) + 4 == len(_THREE), "a row without a home, or a head"
    for what, shown, home in HOMES:
        number = re.match(r"\d+", shown)
        assert number, what
        assert int(number[0]) == getattr(limits, home.strip("`")), what


def test_the_rules_about_keys_and_tags_are_those_of_the_page() -> None:
    page = (ROOT / "docs" / "reference" / "producer-limits.md").read_text()
    heads = Heads()
    least, most = map(int, re.findall(r"an integer from (-\d+) to (\d+)", page)[0])
    for key in (least, most, "k", b"k"):
        heads.of_message(None, key, None)
    for key in (least - 1, most + 1, True, 1.5):
        with pytest.raises(InvalidArgument, match="key"):
            heads.of_message(None, key, None)  # type: ignore[arg-type]
    heads.of_message("t" * limits.TAG_BYTES_MAX, None, {str(n): "" for n in range(3_000)})
    for tag in ("", "t" * (limits.TAG_BYTES_MAX + 1), " a", "a ", "a||b"):
        with pytest.raises(InvalidArgument, match="tag"):
            heads.of_message(tag, None, None)
    for headers in ({"": "x"}, {"n": 1}, {"n": "x" * limits.PROPERTIES_BYTES_MAX}):
        with pytest.raises((InvalidArgument, MessageTooLarge), match="header"):
            heads.of_message(None, None, headers)  # type: ignore[arg-type]
    assert f"and {MESSAGE_OVERHEAD_BYTES} bytes more" in page


def test_every_rule_about_outcomes_names_tests_that_exist() -> None:
    named = set(
        re.findall(r"`(test_\w+)`", (ROOT / "docs" / "reference" / "outcomes.md").read_text())
    )
    assert len(named) > 15
    defined: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        defined |= set(re.findall(r"def (test_\w+)\(", path.read_text()))
    assert not named - defined


def test_every_number_of_a_producer_has_its_row() -> None:
    """docs/reference/producer-metrics.md says what each one counts, its unit and its kind."""
    page = (ROOT / "docs" / "reference" / "producer-metrics.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \|(.*)\|$", page, re.MULTILINE))
    known: set[str] = set()
    for kind in (vq.ProducerMetrics, vq.TopicMetrics, vq.RequestMetrics, vq.Latency):
        known |= {field.name for field in dataclasses.fields(kind)}
        known |= {name for name, each in vars(kind).items() if isinstance(each, property)}
    assert rows.keys() == known
    for name, row in rows.items():
        unit, how, counted = (cell.strip() for cell in row.split("|"))
        assert counted, name
        if name not in {"total", "topics", "requests"}:
            assert unit, name
            assert how in {"counter", "gauge", "counter (histogram)", "constant"}, name
