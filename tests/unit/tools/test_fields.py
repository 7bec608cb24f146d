"""How much state a class has: past fourteen fields that change, it is two classes."""

import ast
import re
from functools import cache
from pathlib import Path

import vq

FOLDER = Path(vq.__file__).parent
MOST = 14
#: Classes with more, each with the reason; a number here may only shrink.
LARGER: dict[str, int] = {}


@cache
def sizes() -> dict[str, list[str]]:
    """The fields that change, of every class in a module that names enough of them."""
    return {
        f"{path.relative_to(FOLDER)} {node.name}": sorted(changing(node))
        for path in sorted(FOLDER.rglob("*.py"))
        if len(set(re.findall(r"\bself\.(\w+)", text := path.read_text("utf-8")))) > MOST
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef)
    }


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


def test_a_class_has_few_fields_that_change() -> None:
    """Compose: what belongs together has a noun of its own."""
    found = sizes()
    assert len(found) > 200
    many = {name: fields for name, fields in found.items() if len(fields) > LARGER.get(name, MOST)}
    assert not many


def test_exceptions_are_needed() -> None:
    """A class that got smaller leaves the list."""
    found = {name: len(fields) for name, fields in sizes().items()}
    assert {name: found[name] for name in LARGER} == LARGER
