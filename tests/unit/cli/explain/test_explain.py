"""``vq explain``: how an answer is shown, and what each question takes."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from support.commands import refused, run_command
from support.json_schema import schema_of, wrong

from vq.cli.base.options import Invocation
from vq.cli.explain import explain as module
from vq.cli.explain.explain import explain
from vq.model import TopicSettings
from vq.operations.explain import disk_causes, message_causes, partition_causes, send_causes
from vq.operations.explain.answers import NOT_KNOWN, Cause, ExplainedFact, Explanation
from vq.operations.explain.disk_causes import TopicOnDisk
from vq.operations.explain.disks import DiskExplanation

ANSWER = Explanation(
    question="partition",
    subject="group g in t-3",
    found=Cause("no_members", "group g has no members", ("vq consume t --group g",)),
    is_certain=False,
    also=(Cause("no_master", "b1 has no master", ("vq cluster status",)),),
    open=("other_topic",),
    facts=(ExplainedFact("members", 0), ExplainedFact("owner", None)),
    unknown=("broker b1 is silent",),
)
TOPIC = TopicOnDisk(
    topic="orders", disk_bytes=5 << 30, settings=TopicSettings(retention_bytes=1 << 30)
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What operations are asked for, with which arguments."""
    found: list[Any] = []

    async def answer(*arguments: Any, **named: Any) -> Explanation:
        found.append((arguments[1:], named))
        return ANSWER

    async def disk(*arguments: Any) -> DiskExplanation:
        found.append((arguments[1:], {}))
        return DiskExplanation(ANSWER, (TOPIC,))

    def call(_: object, operation: Any, *arguments: Any, **named: Any) -> Any:
        return asyncio.run(operation(None, *arguments, **named))

    monkeypatch.setattr(Invocation, "call", call)
    for name in ("partition", "key", "message", "send"):
        monkeypatch.setattr(module, f"explain_{name}", answer)
    monkeypatch.setattr(module, "explain_disk", disk)
    return found


@pytest.mark.parametrize(
    ("arguments", "asks"),
    [
        (("partition", "t/3", "--group", "g"), (("g", "t", 3), {})),
        (("partition", "a-t-3", "--group", "g"), (("g", "a-t", 3), {})),
        (("key", "t", "k"), (("t", "k"), {})),
        (("key", "t", "5", "--key-type", "int"), (("t", 5), {})),
        (("message", "t", "77", "--group", "g"), (("g", "t"), {"id": 77})),
        (("message", "t", "3:9", "--group", "g"), (("g", "t"), {"partition": 3, "offset": 9})),
        (("disk", "b1/n1"), (("b1/n1",), {})),
        (("send", "t"), (("t",), {"key": None, "partition": None, "size": None, "sender": None})),
        (
            ("send", "t", "--key", "k", "--size", "1K"),
            (("t",), {"key": "k", "partition": None, "size": 1024, "sender": None}),
        ),
    ],
)
def test_a_question_is_asked_with_its_arguments_and_answered_as_its_schema_says(
    asked: list[Any],
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    asks: Any,
) -> None:
    code, out, _ = run_command(explain, [*arguments, "--json"], capsys)
    assert (code, asked) == (0, [asks])
    document = json.loads(out)
    assert not list(wrong(document, schema_of(("explain", *arguments))))
    assert (document["cause"], document["certain"]) == ("no_members", False)


def test_people_read_the_answer_the_commands_and_what_is_not_known(
    asked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run_command(explain, ["partition", "t/3", "--group", "g"], capsys)
    assert code == 0
    assert out.splitlines() == [
        "group g in t-3: group g has no members",
        "  -> vq consume t --group g",
        "also (no_master): b1 has no master",
        "  -> vq cluster status",
        "not known: broker b1 is silent",
        "not certain, since not ruled out: other_topic",
        "",
        "cause\tno_members",
        "members\t0",
        "owner\tunknown",
    ]


def test_a_disk_has_a_table_of_its_topics(
    asked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = run_command(explain, ["disk", "b1"], capsys)
    assert out.splitlines()[-1].split("\t") == [
        *("orders", "5.0 GiB", "unknown", "0 B"),
        "delete: 72 h or 1.0 GiB a partition",
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ("partition", "t", "--group", "g"),
        ("message", "t", "x", "--group", "g"),
        ("send", "t", "--key-type", "int"),
        ("send", "t", "--key", "k", "--partition", "1"),
    ],
)
def test_what_names_nothing_is_a_wrong_use(asked: list[Any], arguments: tuple[str, ...]) -> None:
    assert refused(explain, arguments, code=2)["message"]
    assert asked == []


def test_the_page_names_every_cause() -> None:
    page = Path(__file__).parents[4].joinpath("docs/howto/explain.md").read_text("utf-8")
    tables: list[Any] = [
        partition_causes.TABLE,
        send_causes.SEND_TABLE,
        send_causes.KEY_TABLE,
        message_causes.TABLE,
        disk_causes.TABLE,
    ]
    causes = {row.cause for table in tables for row in table} | {NOT_KNOWN}
    assert {each for each in causes if f"`{each}`" not in page} == set()
