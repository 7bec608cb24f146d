"""How much state a class of a consumer has: past fourteen fields that change, it is two classes."""

import ast
from pathlib import Path

import pytest

import vq.client.consumer

FOLDER = Path(vq.client.consumer.__file__).parent
MOST = 14
#: With the reason beside the class; may only shrink.
LARGER = {"ThreadDelivery": 17}


def classes() -> list[ast.ClassDef]:
    trees = (ast.parse(path.read_text("utf-8")) for path in sorted(FOLDER.glob("*.py")))
    return [node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]


def targets(node: ast.AST) -> list[str]:
    """The fields of ``self`` that an assignment sets."""
    match node:
        case ast.Assign(targets=found):
            pass
        case ast.AugAssign(target=one) | ast.AnnAssign(target=one):
            found = [one]
        case _:
            return []
    parts = [part for target in found for part in ast.walk(target)]
    return [
        part.attr
        for part in parts
        if isinstance(part, ast.Attribute)
        and isinstance(part.ctx, ast.Store)
        and isinstance(part.value, ast.Name)
        and part.value.id == "self"
    ]


def changing(found: ast.ClassDef) -> set[str]:
    """The fields that are set after ``__init__``, and the collections that it makes."""
    fields: set[str] = set()
    for method in found.body:
        if not isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in ast.walk(method):
            value = getattr(node, "value", None)
            is_collection = isinstance(value, ast.Dict | ast.List | ast.Set) or (
                isinstance(value, ast.Call)
                and isinstance(value.func, ast.Name)
                and value.func.id in {"set", "deque", "dict", "list"}
            )
            if method.name != "__init__" or is_collection:
                fields.update(targets(node))
    return fields


@pytest.mark.parametrize("found", classes(), ids=lambda found: found.name)
def test_a_class_has_few_fields_that_change(found: ast.ClassDef) -> None:
    fields = sorted(changing(found))
    assert len(fields) <= LARGER.get(found.name, MOST), ", ".join(fields)


def test_exceptions_are_needed() -> None:
    sizes = {found.name: len(changing(found)) for found in classes()}
    assert {name: sizes[name] for name in LARGER} == LARGER
