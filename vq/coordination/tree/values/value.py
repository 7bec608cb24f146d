"""How a value is stored: as a small JSON object that an operator can read with zkCli.

Each has the format version ``v``. A reader ignores fields that it does not know (an older vq reads
a newer value of the same version) and refuses a higher ``v``.
"""

import json
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any, ClassVar, Final, Self

from vq.coordination.tree.coordinator import NODE_BYTES_MAX, Unreadable
from vq.errors import InvalidArgument
from vq.shown import shown

FORMAT_VERSION: Final = 1


class Value:
    """Base of all values: encoding as a JSON object with ``v``; decoding checks every type."""

    _what: ClassVar[str] = "value"
    _newest: ClassVar[int] = FORMAT_VERSION  # the highest version that is read

    def encode(self) -> bytes:
        """Return the bytes to store."""
        return json.dumps({"v": self._version(), **self._to_json()}).encode()

    @classmethod
    def decode(cls, path: str, data: bytes) -> Self:
        """Read the bytes stored at ``path``.

        Raises:
            Unreadable: They are not a value of this class, or a newer vq wrote them.
        """
        document = cls._document(path, data)
        try:
            return cls._from_json(document)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise cls._unreadable(path, data, error) from error

    @classmethod
    def _document(cls, path: str, data: bytes) -> dict[str, Any]:
        """Return the object of a version that this vq reads; its fields are not checked."""
        try:
            document: dict[str, Any] = json.loads(data)
            version = document["v"]
            if type(version) is not int or version < 1:
                raise ValueError(f"v = {version!r}")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise cls._unreadable(path, data, error) from error
        if version > cls._newest:
            raise Unreadable(
                f"znode {path!r} has format v{version}, this vq reads up to v{cls._newest}; "
                "upgrade vq here"
            )
        return document

    @classmethod
    def _unreadable(cls, path: str, data: bytes, error: Exception) -> Unreadable:
        return Unreadable(
            f"znode {path!r} has {shown(data, 80)}, which is not a {cls._what}: {error!r}"
        )

    def _version(self) -> int:
        """Return the version to write: a vq that reads only lower ones would misread the value."""
        return FORMAT_VERSION

    def _to_json(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]

    @classmethod
    def _from_json(cls, document: Mapping[str, Any]) -> Self:
        return cls(**cls._plain_fields(document))

    @classmethod
    def _plain_fields(cls, document: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that are present, each checked against its annotation."""
        declared = declared_fields(cls)  # type: ignore[arg-type]
        values = {name: document[name] for name in declared if name in document}
        for name, value in values.items():
            check_type(name, value, declared[name])
        return values


class SingleValue(Value):
    """Base of values of which the tree has one; see ``coordination.tree.single``.

    All fields have defaults, which hold where nobody has written the value.
    """

    _less: ClassVar[str] = "make it smaller"  # what to do about one that is too large

    @staticmethod
    def path() -> str:
        """Return the path of the only node."""
        raise NotImplementedError

    def encode(self) -> bytes:
        """See ``Value.encode``.

        Raises:
            InvalidArgument: It would be larger than a node may be.
        """
        data = super().encode()
        if len(data) > NODE_BYTES_MAX:
            raise InvalidArgument(
                f"the {self._what} has {len(data)} bytes, at most {NODE_BYTES_MAX} are stored: "
                f"{self._less}"
            )
        return data


@cache
def declared_fields(kind: type) -> Mapping[str, str]:
    """Return the fields of a dataclass with their annotations."""
    return {each.name: str(each.type) for each in fields(kind)}


#: What a plain field of an annotation may have; an annotation may be a class.
_ALLOWED: Final[Mapping[str, tuple[type, ...]]] = {
    form: types
    for annotation, types in {
        "int": (int,),
        "str": (str,),
        "bool": (bool,),
        "float": (int, float),
        "str | None": (str, type(None)),
        "int | None": (int, type(None)),
    }.items()
    for form in (annotation, f"<class '{annotation}'>")
}


def check_type(name: str, value: object, declared: str) -> None:
    """Check a decoded field against its annotation: int, str, bool, float or a container."""
    types = _ALLOWED.get(declared)
    if types is not None:
        if not isinstance(value, types) or (bool not in types and isinstance(value, bool)):
            annotation = declared.removeprefix("<class '").removesuffix("'>")
            raise TypeError(f"{name} = {value!r} is not {annotation}")
        return
    if "Mapping" in declared and not (
        isinstance(value, dict) and all(isinstance(each, str) for each in value.values())
    ):
        raise TypeError(f"{name} = {value!r} is not an object of strings")
    if "tuple" in declared and not (
        isinstance(value, list) and all(isinstance(each, str) for each in value)
    ):
        raise TypeError(f"{name} = {value!r} is not a list of strings")
