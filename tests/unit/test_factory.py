"""The blocking front door: open, shut down, open again."""

from types import SimpleNamespace
from typing import Any

import pytest

from vq import blocking as factories
from vq.blocking import MessageFactory
from vq.client.config import MessageFactoryConfig
from vq.errors import CoordinationError, InvalidState


@pytest.mark.parametrize("fails", [False, True])
def test_a_factory_that_was_shut_down_may_be_opened_again(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """Also when something failed on the way, which is raised."""
    closed: list[str] = []

    async def open_cluster(config: MessageFactoryConfig) -> Any:
        async def close() -> None:
            closed.append(config.client_id)
            if fails:
                raise CoordinationError("away")

        return SimpleNamespace(close=close)

    monkeypatch.setattr(factories, "open_cluster", open_cluster)
    factory = MessageFactory()
    for name in ("one", "two"):
        with pytest.raises(InvalidState, match="not open"):
            factory.create_producer()
        factory.open(MessageFactoryConfig(client_id=name))
        with pytest.raises(InvalidState, match="open already"):
            factory.open()
        runtime = factory._runtime
        assert runtime is not None
        if fails:
            with pytest.raises(CoordinationError, match="away"):
                factory.shutdown()
        else:
            factory.shutdown()
        factory.shutdown()
        assert runtime.gone
    assert closed == ["one", "two"]
