"""Handlers are found by their names."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cases import case

from vq.errors import ContentUnreadable, InvalidArgument
from vq.model import Message
from vq.worker.handlers import Handlers, find
from vq.worker.task import UnknownTask

CODE = """
import vq

seen = []

@vq.task(topic="mail")
def welcome(user: int) -> None:
    seen.append(("welcome", user))

@vq.task(topic="mail", every_s=60)
async def clean() -> None:
    seen.append("clean")

@vq.task(topic="other", name="welcome", version=2)
def later(user: int) -> None:
    seen.append(("later", user))

@vq.task(topic="again")
def again(fails: bool) -> object:
    return vq.Retry(after_s=5) if fails else 7

def plain(message):
    seen.append(message.content)
    return vq.RETRY

async def coroutine(message):
    seen.append(message.content)

def around(message, call):
    seen.append("before")
    try:
        return call(message)
    finally:
        seen.append("after")

def within(message, call):
    seen.append("within")
    return call(message)

def make():
    return [welcome]

tasks = [welcome, later]
number = 3
class Own:
    pass

def steps(message):
    yield message

async def async_steps(message):
    yield message

class Steps:
    def __call__(self, message):
        yield message

called_steps = Steps()

def two(message, other):
    pass
"""


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The module ``own_handlers``, and what its functions saw."""
    import sys

    (tmp_path / "own_handlers.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    import own_handlers  # type: ignore[import-not-found]

    yield own_handlers.seen
    sys.modules.pop("own_handlers", None)


def found(*names: str, topics: tuple[str, ...] = (), middleware: tuple[str, ...] = ()) -> Handlers:
    return find(names, topics, middleware, asyncio.run)


def test_a_module_has_all_of_its_tasks(seen: list[Any]) -> None:
    handlers = found("own_handlers")
    assert sorted(handlers.listeners) == ["again", "mail", "other"]
    assert sorted(handlers.tasks) == ["again@1", "clean@1", "welcome@1", "welcome@2"]
    assert [each.name for each in handlers.periodic] == ["clean"]
    for name, user in (("welcome@1", 1), ("welcome@2", 2)):
        task = handlers.tasks[name]
        assert handlers.listeners[task.topic](task.message(user)) is None
    clean = handlers.tasks["clean@1"]
    handlers.listeners["mail"](clean.message())
    assert seen == [("welcome", 1), ("later", 2), "clean"]


def test_a_task_may_ask_for_another_try_and_other_results_are_dropped(seen: list[Any]) -> None:
    handlers = found("own_handlers:again")
    task, listen = handlers.tasks["again@1"], handlers.listeners["again"]
    assert listen(task.message(True)).after_s == 5
    assert listen(task.message(False)) is None


def test_names_choose(seen: list[Any]) -> None:
    for names, tasks in (
        (("own_handlers:welcome",), ["welcome@1"]),
        (("own_handlers:tasks",), ["welcome@1", "welcome@2"]),
        (("own_handlers:make()",), ["welcome@1"]),
        (("own_handlers:welcome", "own_handlers:later"), ["welcome@1", "welcome@2"]),
    ):
        with case(names):
            assert sorted(found(*names).tasks) == tasks


def test_a_message_of_no_task_of_the_worker_is_another_workers(seen: list[Any]) -> None:
    listen = found("own_handlers:welcome").listeners["mail"]
    for headers in (None, {"vq-task": "welcome@3"}):
        with pytest.raises(UnknownTask, match=r"this worker has welcome@1"):
            listen(Message("mail", b"{}", headers=headers))
    with pytest.raises(ContentUnreadable, match="user missing"):
        listen(Message("mail", b"{}", headers={"vq-task": "welcome@1"}))
    assert seen == []


def test_a_plain_function_has_topics_and_its_answer_counts(seen: list[Any]) -> None:
    import vq

    listeners = found("own_handlers:plain", topics=("a", "b")).listeners
    assert sorted(listeners) == ["a", "b"]
    assert listeners["a"](Message("a", b"1")) is vq.RETRY
    found("own_handlers:coroutine", topics=("a",)).listeners["a"](Message("a", b"2"))
    assert seen == [b"1", b"2"]


def test_middleware_is_around_each_try_the_first_outermost(seen: list[Any]) -> None:
    handlers = found(
        "own_handlers:plain",
        topics=("a",),
        middleware=("own_handlers:around", "own_handlers:within"),
    )
    handlers.listeners["a"](Message("a", b"x"))
    assert seen == ["before", "within", b"x", "after"]


@pytest.mark.parametrize(
    ("names", "topics", "why"),
    [
        (("nowhere_at_all:x",), (), "there is no module 'nowhere_at_all'"),
        (("own_handlers:nothing",), (), "has no attribute 'nothing'"),
        (("own_handlers:number",), (), "own_handlers:number = 3 is int; name a function"),
        (("own_handlers:Own",), (), "is type"),
        (("own_handlers:steps",), ("a",), "steps.* is a generator, which a call alone"),
        (("own_handlers:async_steps",), ("a",), "async_steps.* is a generator"),
        (("own_handlers:called_steps",), ("a",), "Steps.* is a generator"),
        (("own_handlers:two",), ("a",), "required argument: 'other'; name a function"),
        (("own_handlers.py",), (), "name it as own_handlers, from the directory"),
        (("own_handlers:seen",), (), "there is no task and no function"),
        (
            ("own_handlers:plain",),
            (),
            "is a plain function; name what it handles: --topic",
        ),
        (("own_handlers:plain", "own_handlers:coroutine"), ("a",), "2 plain functions"),
        (
            ("own_handlers:plain", "own_handlers:welcome"),
            ("mail",),
            "topic 'mail' is of tasks, which have it",
        ),
        (
            ("own_handlers:welcome",),
            ("a",),
            "tasks have topics of their own .mail.; leave",
        ),
    ],
)
def test_what_is_no_handler_is_refused(
    seen: list[Any], names: tuple[str, ...], topics: tuple[str, ...], why: str
) -> None:
    with pytest.raises(InvalidArgument, match=why):
        found(*names, topics=topics)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("own_handlers:number", r"is int; name a function \(message, call\)"),
        ("own_handlers:plain", r"plain\(message\) cannot be called: too many positional"),
    ],
)
def test_what_is_no_middleware_is_refused(seen: list[Any], name: str, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        found("own_handlers:coroutine", topics=("a",), middleware=(name,))


def test_an_import_that_fails_is_not_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_handlers.py").write_text("import nowhere_either\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="nowhere_either"):
        found("broken_handlers")
