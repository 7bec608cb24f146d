"""The value of ``security/acls``: all rules of access, as one value with one version."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from vq.coordination.tree.coordinator import join
from vq.coordination.tree.paths import SECURITY
from vq.coordination.tree.values.value import SingleValue
from vq.security.rules import AccessRule, AccessRules


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessList(SingleValue):
    """``security/acls``. A rule that this vq does not know makes the whole value unreadable.

    So a rule of a newer vq that denies something is never left out. The version of the node counts
    the changes.
    """

    _what = "list of access rules"
    _less = "name roles instead of users, and the beginning of names instead of names"
    rules: AccessRules = field(default_factory=AccessRules)

    @staticmethod
    def path() -> str:
        """Return the path of the only node."""
        return join(SECURITY, "acls")

    def _to_json(self) -> dict[str, Any]:
        return {"rules": [str(each) for each in self.rules]}

    @classmethod
    def _from_json(cls, document: Mapping[str, Any]) -> Self:
        texts = document["rules"]
        if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
            raise TypeError("rules is not a list of strings")
        return cls(rules=AccessRules(map(AccessRule.parse, texts)))
