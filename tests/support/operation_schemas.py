"""What the console's API says an operation answers, and whether an answer is that."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from jsonschema import Draft202012Validator


class OperationSchemas:
    """The schemas of a description; strict: an object has no field that its schema does not name.

    Args:
        description: OpenAPI 3.1, of the console's API.
    """

    def __init__(self, description: Mapping[str, Any]) -> None:
        self._root = copy.deepcopy(dict(description))
        _close(self._root["components"]["schemas"])
        self.names = frozenset(path.rpartition("/")[2] for path in self._root["paths"])

    def answer(self, name: str, status: int = 200) -> Mapping[str, Any]:
        """Return the schema of an answer."""
        found: Mapping[str, Any] = self._operation(name)["responses"][str(status)]["content"][
            "application/json"
        ]["schema"]
        return found

    def wrong(self, name: str, status: int, answer: Any) -> list[str]:
        """Return what of an answer is not as the description says."""
        schema = {"components": self._root["components"], **self.answer(name, status)}
        return [
            f"{error.json_path}: {error.message[:200]}"
            for error in Draft202012Validator(schema).iter_errors(answer)
        ]

    def asked_types(self, name: str) -> frozenset[str]:
        """Return the names of all types that are in the arguments of an operation."""
        schemas = self._root["components"]["schemas"]
        found: set[str] = set()
        open_ = set(_references(self._operation(name)["requestBody"]))
        while open_:
            found |= open_
            open_ = {each for of in open_ for each in _references(schemas[of])} - found
        return frozenset(found)

    def _operation(self, name: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._root["paths"][f"/clusters/{{cluster}}/{name}"]["post"]
        return found


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"].rpartition("/")[2]
        for each in value.values():
            yield from _references(each)
    elif isinstance(value, list):
        for each in value:
            yield from _references(each)


def _close(value: Any) -> None:
    if isinstance(value, dict):
        if "properties" in value:
            value.setdefault("additionalProperties", False)
        for each in value.values():
            _close(each)
    elif isinstance(value, list):
        for each in value:
            _close(each)
