"""docs/reference/api.md and errors.md are what the code says of itself, and nothing is left out."""

import importlib.util
import inspect
from pathlib import Path
from types import ModuleType

import pytest

import vq
from vq import aio
from vq import errors as vq_errors
from vq.errors import VqError

TOOL = Path(__file__).parents[3] / "tools" / "api_reference.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("api_reference", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_references_are_fresh(tool: ModuleType) -> None:
    assert (tool.REFERENCE / "api.md").read_text() == tool.api(), "run `make docs`"
    assert (tool.REFERENCE / "errors.md").read_text() == tool.errors(), "run `make docs`"


def test_every_public_name_has_its_section(tool: ModuleType) -> None:
    page = tool.api()
    for title, module in (("vq", vq), ("vq.aio", aio)):
        for name in module.__all__:
            assert f"### `{title}.{name}`\n" in page


def test_every_public_method_says_what_it_does() -> None:
    """An empty text on the page would be of no help."""
    for module in (vq, aio):
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
