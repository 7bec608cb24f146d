"""The table of operations: both APIs have a method of each row, with its arguments and text."""

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
from support.cases import case

import vq
from vq import aio, blocking
from vq.cli.main import commands
from vq.client.config import MessageFactoryConfig
from vq.coordination.tree.memory import MemoryEnsemble
from vq.errors import InvalidState, UnknownTopic
from vq.operations.operation import Effect, Operation, rows_of
from vq.operations.table import Operations
from vq.security.rules import Right

ROWS = rows_of(Operations)


def methods(cls: type) -> dict[str, inspect.Signature]:
    """Return the public methods with what they take and return."""
    return {
        name: inspect.signature(member)
        for name, member in vars(cls).items()
        if inspect.isfunction(member) and not name.startswith("_")
    }


def test_both_apis_have_a_method_of_each_row_in_its_order() -> None:
    names = [each.name for each in ROWS]
    assert len(names) > 70
    assert list(methods(vq.Admin)) == list(methods(aio.Admin)) == names


def test_a_method_takes_returns_and_says_what_its_function_does() -> None:
    """Without the cluster. What yields its results is an iterator of threads."""
    for row in ROWS:
        with case(row.name):
            check_methods(row)


def check_methods(row: Operation[..., Any, Any]) -> None:
    """Compare the methods of a row with its function."""
    threads, loop = getattr(vq.Admin, row.name), getattr(aio.Admin, row.name)
    assert threads.__doc__ == loop.__doc__ == row.function.__doc__
    assert threads.__qualname__ == loop.__qualname__ == f"Admin.{row.name}"
    taken, other = inspect.signature(threads), inspect.signature(loop)
    arguments = inspect.signature(row.function).parameters
    assert next(iter(arguments)) == "cluster"
    assert list(taken.parameters.values())[1:] == list(arguments.values())[1:]
    assert taken.parameters == other.parameters
    if inspect.isasyncgenfunction(row.function):
        assert inspect.isasyncgenfunction(loop)
        assert inspect.isgeneratorfunction(threads)
    else:
        assert inspect.iscoroutinefunction(loop)
        assert taken.return_annotation == other.return_annotation


def test_a_row_says_what_is_needed_of_what() -> None:
    """What acts needs more than a look; a plan needs no more. An argument tells of which."""
    for row in ROWS:
        with case(row.name):
            assert row.concerned in {"", *row.signature.parameters}
            assert (row.effect is Effect.PLAN) == row.name.startswith("plan_")
            if row.effect is Effect.ACT:
                assert row.right is not Right.DESCRIBE
            elif row.effect is Effect.PLAN:
                assert row.right is Right.DESCRIBE


def test_a_row_names_a_command_that_exists() -> None:
    known = {name for name, _ in commands()}
    assert {each.command for each in ROWS} - {""} <= known


def test_a_class_of_ones_own_may_replace_a_method() -> None:
    class Own(vq.Admin):
        def list_writes(self) -> list[str]:
            return ["own"]

    assert Own.list_writes(Own.__new__(Own)) == ["own"]
    assert Own.list_topics is vq.Admin.list_topics


def test_questions_are_answered_on_the_factorys_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    ensemble = MemoryEnsemble()

    async def exists(*_: object, **__: object) -> None: ...

    async def open_cluster(config: MessageFactoryConfig) -> Any:
        coordinator = ensemble.coordinator("test", session_timeout_s=4.0)
        await coordinator.start()
        return SimpleNamespace(
            coordinator=coordinator,
            close=coordinator.close,
            check_loop=lambda: None,
            check_cluster=exists,
        )

    monkeypatch.setattr(blocking.factory, "open_cluster", open_cluster)
    with vq.MessageFactory() as factory:
        operator = factory.admin
        assert operator.list_topics() == []
        assert operator.list_groups() == []
        assert operator.cluster_status().brokers == ()
        with pytest.raises(UnknownTopic):
            operator.describe_topic("nowhere")
    with pytest.raises(InvalidState, match="shut down"):
        operator.list_topics()
    with pytest.raises(InvalidState, match="not open"):
        factory.admin  # noqa: B018 - the access is what is tested
