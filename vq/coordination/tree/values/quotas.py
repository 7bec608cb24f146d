"""The value of ``security/quotas``: all quotas, as one value with one version."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from vq.coordination.tree.coordinator import join
from vq.coordination.tree.paths import SECURITY
from vq.coordination.tree.values.value import SingleValue
from vq.security.quotas import Quota, Quotas


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaList(SingleValue):
    """``security/quotas``. A limit that this vq does not know makes the whole value unreadable.

    The version of the node counts the changes.
    """

    _what = "list of quotas"
    _less = "give user:* the limits that most users have"
    quotas: Quotas = field(default_factory=Quotas)

    @staticmethod
    def path() -> str:
        """Return the path of the only node."""
        return join(SECURITY, "quotas")

    def _to_json(self) -> dict[str, Any]:
        return {"quotas": [str(each) for each in self.quotas]}

    @classmethod
    def _from_json(cls, document: Mapping[str, Any]) -> Self:
        texts = document["quotas"]
        if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
            raise TypeError("quotas is not a list of strings")
        return cls(quotas=Quotas(map(Quota.parse, texts)))
