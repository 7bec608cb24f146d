"""How a value is stored: as a small JSON object that an operator can read with zkCli.

Each has the format version ``v``. A reader ignores fields that it does not know (an older vq reads
a newer value of the same version) and refuses a higher ``v``.
"""

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar, Final, Self

from vq.coordination.tree.coordinator import Unreadable
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
        try:
            document = json.loads(data)
            version = document["v"]
            if type(version) is not int or version < 1:
                raise ValueError(f"v = {version!r}")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise Unreadable(
                f"znode {path!r} has {shown(data, 80)}, which is not a {cls._what}: {error!r}"
            ) from error
        if version > cls._newest:
            raise Unreadable(
                f"znode {path!r} has format v{version}, this vq reads up to v{cls._newest}; "
                "upgrade vq here"
            )
        try:
            return cls._from_json(document)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Unreadable(
                f"znode {path!r} has {shown(data, 80)}, which is not a {cls._what}: {error!r}"
            ) from error

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
        known = {each.name: each for each in fields(cls)}  # type: ignore[arg-type]
        values = {name: document[name] for name in known if name in document}
        for name, value in values.items():
            check_type(name, value, str(known[name].type))
        return values


def check_type(name: str, value: object, declared: str) -> None:
    """Check a decoded field against its annotation: int, str, bool, float or a container."""
    allowed: dict[str, tuple[type, ...]] = {
        "int": (int,),
        "str": (str,),
        "bool": (bool,),
        "float": (int, float),
        "str | None": (str, type(None)),
        "int | None": (int, type(None)),
    }
    for annotation, types in allowed.items():
        if declared in {annotation, f"<class '{annotation}'>"}:
            if not isinstance(value, types) or (bool not in types and isinstance(value, bool)):
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
