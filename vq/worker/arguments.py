"""The arguments of a task: bound to its parameters, checked by their annotations. Pure.

=============================  ==========================================================
annotation                     takes
=============================  ==========================================================
``bool``, ``str``, ``bytes``   a value of just this type
``int``                        an ``int`` that is no ``bool``
``float``                      a ``float`` or an ``int``
``None``                       ``None``
``list[T]``, ``dict[str, T]``  each value is a ``T``
``A | B``, ``Optional[A]``     what one of them takes
``Literal[...]``               one of these values
``Any``                        everything
=============================  ==========================================================

Others are refused where the task is made: what a serializer gives back has these types alone.
"""

import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from vq.errors import ContentUnreadable, InvalidArgument
from vq.shown import shown

_PLAIN: Final = frozenset((bool, str, bytes, int, float, type(None)))
_KINDS: Final = frozenset((inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY))


class Parameters:
    """The parameters of a function.

    Raises:
        InvalidArgument: One has no annotation, or one that no serializer gives back.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._signature = inspect.signature(function)
        name = getattr(function, "__qualname__", repr(function))
        try:
            hints = get_type_hints(function)
        except Exception as error:
            raise InvalidArgument(f"annotations of {name} cannot be read: {error}") from error
        self._name = name
        self._hints: dict[str, Any] = {}
        for each in self._signature.parameters.values():
            if each.kind not in _KINDS:
                raise InvalidArgument(
                    f"parameter {each} of {name} takes any number, or no name: a task has named "
                    "parameters alone"
                )
            if each.name not in hints:
                raise InvalidArgument(
                    f"parameter {each.name} of {name} has no annotation; give one, as in "
                    f"{each.name}: str"
                )
            hint = hints[each.name]
            if not _is_known(hint):
                raise InvalidArgument(
                    f"parameter {each.name} of {name} is {_text(hint)}; give bool, int, float, "
                    "str, bytes, None, list[...], dict[str, ...], a union, Literal or Any; others, "
                    "such as a time or a Decimal, as text"
                )
            self._hints[each.name] = hint

    def __contains__(self, name: object) -> bool:
        return name in self._hints

    def check_json(self) -> None:
        """Refuse parameters that no JSON has.

        Raises:
            InvalidArgument: One is bytes.
        """
        for name, hint in self._hints.items():
            if hint is bytes:
                raise InvalidArgument(
                    f"parameter {name} of {self._name} is bytes, which JSON has not; give "
                    "serializer=vq.serializers.Hessian2(), or make it text"
                )

    def may_be_key(self, name: str) -> bool:
        """Return whether a parameter takes values that messages may have as keys."""
        return _may_be_key(self._hints[name])

    def has_required(self) -> bool:
        """Return whether a call needs arguments."""
        parameters = self._signature.parameters.values()
        return any(each.default is inspect.Parameter.empty for each in parameters)

    def bind(self, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name, without those that are left out.

        Raises:
            InvalidArgument: The function takes no such call.
        """
        try:
            bound = self._signature.bind(*arguments, **named).arguments
        except TypeError as error:
            raise InvalidArgument(f"{self._name}{self._signature}: {error}") from error
        for name, value in bound.items():
            why = _why_not(self._hints[name], value, name)
            if why:
                raise InvalidArgument(f"{self._name}: {why}")
        return dict(bound)

    def read(self, found: object) -> dict[str, Any]:
        """Return the arguments of a call as they were received.

        Raises:
            ContentUnreadable: The function takes no such call.
        """
        if not isinstance(found, dict):
            raise ContentUnreadable(
                f"{self._name}: the content is {type(found).__name__}, no map of arguments"
            )
        for name, value in found.items():
            if name not in self._hints:
                raise ContentUnreadable(f"{self._name}{self._signature} has no {shown(name)}")
            why = _why_not(self._hints[name], value, name)
            if why:
                raise ContentUnreadable(f"{self._name}: {why}")
        missing = [
            each.name
            for each in self._signature.parameters.values()
            if each.default is inspect.Parameter.empty and each.name not in found
        ]
        if missing:
            raise ContentUnreadable(
                f"{self._name}{self._signature}: {', '.join(missing)} missing in the content"
            )
        return found


def _is_known(hint: Any) -> bool:
    if hint is Any or hint in _PLAIN or hint is list or hint is dict:
        return True
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return all(type(each) in _PLAIN for each in inner)
    if origin in (Union, types.UnionType):
        return all(map(_is_known, inner))
    if origin is list:
        return _is_known(inner[0])
    return origin is dict and inner[0] is str and _is_known(inner[1])


def _may_be_key(hint: Any) -> bool:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(map(_may_be_key, inner))
    if origin is Literal:
        return any(isinstance(each, str | bytes | int) for each in inner)
    return hint is Any or hint in (str, bytes, int)


def _why_not(hint: Any, value: Any, where: str) -> str:
    """Return why a value is not of a type; "": it is."""
    if hint is Any:
        return ""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if any(not _why_not(each, value, where) for each in inner):
            return ""
        nearest = [each for each in inner if (get_origin(each) or each) is type(value)]
        is_one = len(nearest) == 1
        return _why_not(nearest[0], value, where) if is_one else _is_not(where, value, hint)
    if origin is Literal:
        is_one = any(type(each) is type(value) and each == value for each in inner)
        return "" if is_one else _is_not(where, value, hint)
    kind = origin or hint
    if not (type(value) is kind or (kind is float and type(value) is int)):
        return _is_not(where, value, hint)
    if origin is list:
        whys = (_why_not(inner[0], each, f"{where}[{n}]") for n, each in enumerate(value))
        return next(filter(None, whys), "")
    if origin is dict:
        for name, each in value.items():
            if type(name) is not str:
                return f"a key of {where} is {shown(name)}; give text"
            why = _why_not(inner[1], each, f"{where}[{shown(name)}]")
            if why:
                return why
    return ""


def _is_not(where: str, value: object, hint: object) -> str:
    return f"{where} = {shown(value)} is {type(value).__name__}, not {_text(hint)}"


def _text(hint: Any) -> str:
    return "None" if hint is type(None) else getattr(hint, "__name__", "") or str(hint)
