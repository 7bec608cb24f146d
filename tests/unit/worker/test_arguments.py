"""Arguments of tasks are those of the annotations, at both ends."""

from typing import Any, Literal

import pytest
from support.cases import case

from vq.errors import ContentUnreadable, InvalidArgument
from vq.worker.arguments import Parameters


def takes(
    flag: bool,
    count: int,
    share: float,
    name: str | None,
    kinds: list[Literal["a", "b"]],
    parts: dict[str, list[int]],
    other: Any = None,
) -> None:
    """One parameter of each kind."""


GOOD = {
    "flag": True,
    "count": 3,
    "share": 1,
    "name": None,
    "kinds": ["a", "b"],
    "parts": {"x": [1, 2]},
}


def test_what_the_annotations_take_is_bound_and_read() -> None:
    parameters = Parameters(takes)
    assert parameters.bind((True, 3), {**{k: GOOD[k] for k in list(GOOD)[2:]}}) == GOOD
    assert parameters.read(dict(GOOD)) == GOOD
    assert parameters.read({**GOOD, "other": object}) == {**GOOD, "other": object}
    assert "count" in parameters
    assert parameters.has_required()


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("flag", 1, "flag = 1 is int, not bool"),
        ("count", True, "count = True is bool, not int"),
        ("count", 1.0, "count = 1.0 is float, not int"),
        ("share", "1", "share = '1' is str, not float"),
        ("name", 3, "name = 3 is int, not str | None"),
        ("kinds", ["a", "c"], r"kinds\[1\] = 'c' is str"),
        ("kinds", ("a",), r"kinds = \('a',\) is tuple, not list"),
        ("parts", {"x": [1, "2"]}, r"parts\['x'\]\[1\] = '2' is str, not int"),
        ("parts", {1: []}, "a key of parts is 1; give text"),
    ],
)
def test_another_value_is_refused_with_its_place(name: str, value: object, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        Parameters(takes).bind((), {**GOOD, name: value})
    with pytest.raises(ContentUnreadable, match=why):
        Parameters(takes).read({**GOOD, name: value})


def test_a_call_with_other_arguments_is_refused() -> None:
    parameters = Parameters(takes)
    with pytest.raises(InvalidArgument, match="missing a required argument"):
        parameters.bind((), {})
    with pytest.raises(InvalidArgument, match="unexpected keyword"):
        parameters.bind((), {**GOOD, "more": 1})
    with pytest.raises(ContentUnreadable, match="parts missing in the content"):
        parameters.read({name: each for name, each in GOOD.items() if name != "parts"})
    with pytest.raises(ContentUnreadable, match="has no 'more'"):
        parameters.read({**GOOD, "more": 1})
    with pytest.raises(ContentUnreadable, match="no map of arguments"):
        parameters.read([1])


def test_a_function_that_no_content_can_call_is_refused() -> None:
    def without(user):  # type: ignore[no-untyped-def]
        return user

    def several(*users: int) -> None: ...

    def sets(users: set[int]) -> None: ...

    def keys(users: dict[int, str]) -> None: ...

    def missing(user: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    for function, why in (
        (without, "has no annotation"),
        (several, "takes any number"),
        (sets, r"is set\[int\]|is set"),
        (keys, "is dict"),
        (missing, "cannot be read"),
    ):
        with case(function.__name__), pytest.raises(InvalidArgument, match=why):
            Parameters(function)
