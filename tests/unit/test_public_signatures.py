"""What the public signatures say: public names only, and the same in both APIs."""

import dataclasses
import enum
import inspect
import typing
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import vq
from vq import admin, aio, columns, errors, local, opentelemetry, serializers

PUBLIC = (vq, aio, admin, columns, local, serializers, opentelemetry)


def public_classes() -> dict[type, str]:
    """Return the classes of the public modules, each with the name it is imported by."""
    found: dict[type, str] = {}
    for module in PUBLIC:
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value):
                found.setdefault(value, f"{module.__name__}.{name}")
    return found


def error_classes(module: ModuleType = errors) -> set[type]:
    return {each for each in vars(module).values() if inspect.isclass(each)}


def classes_in(hint: Any) -> Iterator[type]:
    """Yield the classes that an annotation is made of."""
    if isinstance(hint, list):
        for each in hint:
            yield from classes_in(each)
        return
    origin = typing.get_origin(hint)
    if origin is not None:
        yield from classes_in(origin)
        for each in typing.get_args(hint):
            yield from classes_in(each)
    elif inspect.isclass(hint):
        yield hint


def members_of(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield the functions of a public class that an application calls."""
    internal = ("For vq only", "For the sender only", "For the factory only")
    for name, member in vars(cls).items():
        if name.startswith("_") or any(
            s in (getattr(member, "__doc__", "") or "") for s in internal
        ):
            continue
        if isinstance(member, property):
            yield name, member.fget
        elif isinstance(member, classmethod | staticmethod):
            yield name, member.__func__
        elif inspect.isfunction(member):
            yield name, member
    is_made = dataclasses.is_dataclass(cls) or hasattr(cls, "_fields")
    if is_made:
        yield "fields", cls


#: What a setting needs beside a choice.
NEEDED: dict[tuple[str, str], dict[str, Any]] = {
    ("model", "broadcasting"): {"member_id": "m"},
    ("on_failure", "retry-topic"): {"order": "relaxed"},
}


@pytest.mark.parametrize(
    "settings",
    [
        vq.ProducerConfig(),
        vq.ConsumerConfig(group="g", rack="r1", member_id="m", order="relaxed"),
        vq.TopicSettings(),
        admin.Target(goal=admin.Goal.EARLIEST, value=1),
    ],
    ids=lambda settings: type(settings).__name__,
)
def test_type_checkers_know_the_texts_that_a_setting_takes(settings: Any) -> None:
    """A choice may be given as text; the text becomes the choice, which is compared by identity."""
    choices: dict[str, type[enum.StrEnum]] = {}
    for name, hint in typing.get_type_hints(type(settings)).items():
        kinds = [found for found in classes_in(hint) if issubclass(found, enum.StrEnum)]
        if not kinds:
            continue
        (choices[name],) = kinds
        options = typing.get_args(hint)
        texts = [each for one in options for each in typing.get_args(one)]
        assert str in options or texts == [each.value for each in choices[name]], name
    assert choices
    for name, kind in choices.items():
        for each in kind:
            needed = NEEDED.get((name, str(each)), {})
            given = dataclasses.replace(settings, **{name: str(each)}, **needed)
            assert getattr(given, name) is each


#: What a factory imports when it is asked for.
ON_DEMAND = {"Admin": vq.Admin}


def test_a_public_signature_has_only_public_names() -> None:
    """A program with type checks must be able to write down what it is given and what it gives."""
    known = {*public_classes(), *error_classes()}
    hidden = {
        f"{cls.__qualname__}.{name}: {found.__module__}.{found.__qualname__}"
        for cls in public_classes()
        for name, member in members_of(cls)
        for hint in typing.get_type_hints(member, localns=ON_DEMAND).values()
        for found in classes_in(hint)
        if found.__module__.partition(".")[0] == "vq" and found not in known
    }
    assert not hidden
