"""``factory.admin`` for threads: the same methods as the coroutines, run on the factory's loop."""

import inspect
from types import SimpleNamespace
from typing import Any

import pytest

import vq
from vq import aio, blocking
from vq.client.config import MessageFactoryConfig
from vq.coordination.tree.memory import MemoryEnsemble
from vq.errors import InvalidState, UnknownTopic


def methods(cls: type) -> dict[str, inspect.Signature]:
    """Return the public methods with what they take and return."""
    return {
        name: inspect.signature(member)
        for name, member in vars(cls).items()
        if inspect.isfunction(member) and not name.startswith("_")
    }


#: What yields its results: blocking as an iterator, as coroutines as an asynchronous one.
YIELDING = {"read_columns"}


def test_both_faces_have_the_same_methods() -> None:
    """With the same arguments, defaults and results, in the same order."""
    assert list(methods(vq.Admin)) == list(methods(aio.Admin))
    for name, signature in methods(vq.Admin).items():
        other = methods(aio.Admin)[name]
        member = getattr(aio.Admin, name)
        if name in YIELDING:
            assert signature.parameters == other.parameters
            assert inspect.isasyncgenfunction(member)
        else:
            assert signature == other
            assert inspect.iscoroutinefunction(member)


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
