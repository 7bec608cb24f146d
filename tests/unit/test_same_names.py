"""Both APIs have the same methods with the same arguments and defaults, apart from a short list."""

import inspect
from collections.abc import Mapping
from typing import Any

import pytest

from vq import aio, blocking

#: Of each class: methods of one API only.
ONLY_BLOCKING = {
    "MessageProducer": {"send_sync"},  # ``send`` of vq.aio, which waits in another way
    "MessageConsumer": {"check_outside"},  # for vq only
    "MessageFactory": set[str](),
}
ONLY_AIO = {
    "MessageProducer": {"send"},
    "MessageConsumer": set[str](),
    "MessageFactory": {"on_cluster"},  # for vq only
}


def methods_of(cls: type) -> Mapping[str, Any]:
    return {
        name: getattr(member, "fget", member)
        for name, member in inspect.getmembers(cls)
        if not name.startswith("_")
    }


def arguments_of(function: Any) -> dict[str, tuple[Any, Any]]:
    parameters = inspect.signature(function).parameters.values()
    return {each.name: (each.kind, each.default) for each in parameters}


@pytest.mark.parametrize("name", ONLY_AIO)
def test_both_apis_have_the_same_methods(name: str) -> None:
    threads, loop = methods_of(getattr(blocking, name)), methods_of(getattr(aio, name))
    assert set(threads) - set(loop) == ONLY_BLOCKING[name]
    assert set(loop) - set(threads) == ONLY_AIO[name]


@pytest.mark.parametrize("name", ONLY_AIO)
def test_both_apis_take_the_same_arguments(name: str) -> None:
    threads, loop = methods_of(getattr(blocking, name)), methods_of(getattr(aio, name))
    for method in set(threads) & set(loop):
        if not callable(threads[method]):
            continue
        assert arguments_of(threads[method]) == arguments_of(loop[method]), method


def test_send_takes_what_send_sync_takes() -> None:
    """Their time-outs differ, as documented: ``send_sync`` waits 3 s, ``send`` as configured."""
    sync = arguments_of(blocking.MessageProducer.send_sync)
    send = arguments_of(aio.MessageProducer.send)
    assert list(sync) == list(send) == ["self", "message", "timeout"]
    assert (sync["timeout"][1], send["timeout"][1]) == (3.0, None)
