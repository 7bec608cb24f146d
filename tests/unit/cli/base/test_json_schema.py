"""A shape shows a value as JSON, and its schema says what that is."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jsonschema
import pytest

from vq.cli.base.json_schema import Shape, as_text, having, maybe, record, schema_of, some


class Colour(enum.StrEnum):
    RED = "red"


class Place(NamedTuple):
    name: str
    seen_ms: int | None = None


@dataclass(frozen=True)
class Thing:
    id: int
    colour: Colour = Colour.RED
    error: str = ""
    made_ms: int = 1_500
    place: Place | None = None
    places: tuple[Place, ...] = ()
    by_name: Mapping[str, Place] | None = None
    size: int | float | None = None

    @property
    def is_good(self) -> bool:
        return not self.error


def _count(places: tuple[Place, ...]) -> int:
    return len(places)


def _sentence(thing: Thing) -> str | None:
    return thing.error or None


HERE = Place("here", 250)
ANYWHERE = {"name": "here", "seen_s": 0.25}


@pytest.mark.parametrize(
    ("shape", "value", "shown"),
    [
        pytest.param(
            Shape(Thing),
            Thing(7, place=HERE, places=(HERE,), by_name={"a": HERE}, size=0.5),
            {
                "id": 7,
                "colour": "red",
                "error": "",
                "made_s": 1.5,
                "place": ANYWHERE,
                "places": [ANYWHERE],
                "by_name": {"a": ANYWHERE},
                "size": 0.5,
            },
            id="all fields, with times in seconds",
        ),
        pytest.param(
            Shape(Thing, "number=id is_good"),
            Thing(7),
            {"number": 7, "is_good": True},
            id="renamed",
        ),
        pytest.param(
            Shape(Thing, "error?"), Thing(7), {"error": None}, id="an empty value is null"
        ),
        pytest.param(Shape(Thing, "made_s"), Thing(7), {"made_s": 1.5}, id="a time by its name"),
        pytest.param(
            Shape(Thing, "at_s=place.seen_ms"), Thing(7, place=HERE), {"at_s": 0.25}, id="of a part"
        ),
        pytest.param(Shape(Thing, "name=place.name"), Thing(7), {"name": None}, id="of no part"),
        pytest.param(
            Shape(
                Thing, "places by_name", places=Shape(Place, "name"), by_name=Shape(Place, "name")
            ),
            Thing(7, places=(HERE,), by_name={"a": HERE}),
            {"places": [{"name": "here"}], "by_name": {"a": {"name": "here"}}},
            id="with shapes for the elements",
        ),
        pytest.param(
            Shape(Thing, "id count=places why=", id=as_text, count=_count, why=_sentence),
            Thing(7, places=(HERE,)),
            {"id": "7", "count": 1, "why": None},
            id="made by functions",
        ),
    ],
)
def test_a_shape_shows_what_its_schema_says(
    shape: Shape[Thing], value: Thing, shown: dict[str, Any]
) -> None:
    found = shape(value)
    assert found == shown
    schema = {**schema_of(shape), "additionalProperties": False}
    jsonschema.validate(found, schema)
    assert schema["required"] == list(found)


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        pytest.param("size", {"type": ["number", "null"]}, id="a whole number is a number"),
        pytest.param(
            "s=place.seen_ms", {"type": ["number", "null"]}, id="a field of what may be missing"
        ),
        pytest.param("error?", {"type": ["string", "null"]}, id="text that may be empty"),
        pytest.param("is_good", {"type": "boolean"}, id="a property"),
    ],
)
def test_the_kind_of_a_field_is_what_its_class_declares(words: str, kind: dict[str, Any]) -> None:
    (found,) = schema_of(Shape(Thing, words))["properties"].values()
    assert found == kind


def test_kinds_may_stand_inside_one_another() -> None:
    schema = schema_of(some(having(Shape(Place, "name"), more=maybe(record(a=int | None)))))
    jsonschema.validate([{"name": "x", "more": {"a": None}}, {"name": "y", "more": None}], schema)
    with pytest.raises(jsonschema.ValidationError, match="'more' is a required property"):
        jsonschema.validate([{"name": "x"}], schema)


def test_a_part_for_a_field_that_is_not_there_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="are no fields"):
        Shape(Thing, "id", place=as_text)
