"""The value of ``security/acls``: all rules of access, as one value with one version."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from vq import limits
from vq.coordination.tree.coordinator import join
from vq.coordination.tree.paths import SECURITY
from vq.coordination.tree.values.value import Value
from vq.errors import InvalidArgument
from vq.security.rules import AccessRule, AccessRules

__all__ = ["ACCESS_BYTES_MAX", "AccessList"]

#: Largest value: ZooKeeper takes 1 MiB, and some of that is the request around it.
ACCESS_BYTES_MAX: Final = 960 * limits.KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessList(Value):
    """``security/acls``. A rule that this vq does not know makes the whole value unreadable.

    So a rule of a newer vq that denies something is never left out. The version of the node counts
    the changes.
    """

    _what = "list of access rules"
    rules: AccessRules = field(default_factory=AccessRules)

    @staticmethod
    def path() -> str:
        """Return the path of the only node."""
        return join(SECURITY, "acls")

    def encode(self) -> bytes:
        """See ``Value.encode``.

        Raises:
            InvalidArgument: The value would be too large for ZooKeeper.
        """
        data = super(AccessList, self).encode()
        if len(data) > ACCESS_BYTES_MAX:
            raise InvalidArgument(
                f"{len(self.rules)} rules have {len(data)} bytes, at most {ACCESS_BYTES_MAX} are "
                "stored: name roles instead of users, and the beginning of names instead of names"
            )
        return data

    def _to_json(self) -> dict[str, Any]:
        return {"rules": [str(each) for each in self.rules]}

    @classmethod
    def _from_json(cls, document: Mapping[str, Any]) -> Self:
        texts = document["rules"]
        if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
            raise TypeError("rules is not a list of strings")
        return cls(rules=AccessRules(map(AccessRule.parse, texts)))
