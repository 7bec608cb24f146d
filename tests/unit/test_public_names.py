"""``import vq``: cheap, and everything public is there when it is asked for."""

import subprocess
import sys
from types import ModuleType

import pytest

import vq


def imported_by(code: str) -> set[str]:
    """Return the modules that a fresh interpreter has after ``code``."""
    program = f"{code}; import sys; print(*sorted(sys.modules))"
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(ended.stdout.split())


def test_importing_vq_loads_neither_client_nor_event_loop() -> None:
    assert not {"asyncio", "kazoo", "vq.blocking"} & imported_by("import vq")


def test_the_coroutine_api_needs_no_import_of_its_own() -> None:
    assert "vq.aio" in imported_by("import vq; vq.aio.MessageFactory")


@pytest.mark.parametrize("factory", ["vq.MessageFactory", "vq.aio.MessageFactory"])
def test_who_sends_and_receives_loads_no_operations(factory: str) -> None:
    """They are a third of what a client imports; only ``factory.admin`` needs them."""
    modules = imported_by(f"import vq; {factory}")
    assert "vq.client.producer.core" in modules
    assert "vq.operations.table" not in modules
    assert "vq.operations.table" in imported_by(f"import vq; vq.Admin; vq.aio.Admin; {factory}")


def test_the_values_of_operators_need_no_import_of_their_own() -> None:
    assert "vq.operations.groups.resets" in imported_by("import vq; vq.admin.Goal")
    assert "vq.client" not in imported_by("import vq; vq.admin")


def test_serializers_need_no_import_of_their_own() -> None:
    modules = imported_by("import vq; vq.serializers.Json")
    assert "vq.serializers" in modules
    assert not {"asyncio", "vq.client"} & modules


@pytest.mark.parametrize("module", [vq, vq.admin], ids=lambda module: module.__name__)
def test_every_public_name_is_there_and_others_are_not(module: ModuleType) -> None:
    for name in module.__all__:
        assert getattr(module, name) is not None
    assert set(dir(module)) == set(module.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        module.no_such_name  # noqa: B018 - the access is what is tested
