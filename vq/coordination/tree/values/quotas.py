"""The value of ``security/quotas``: all quotas, as one value with one version."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from vq import limits
from vq.coordination.tree.coordinator import join
from vq.coordination.tree.paths import SECURITY
from vq.coordination.tree.values.value import Value
from vq.errors import InvalidArgument
from vq.security.quotas import Quota, Quotas

__all__ = ["QUOTAS_BYTES_MAX", "QuotaList"]

#: Largest value: ZooKeeper takes 1 MiB, and some of that is the request around it.
QUOTAS_BYTES_MAX: Final = 960 * limits.KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaList(Value):
    """``security/quotas``. A limit that this vq does not know makes the whole value unreadable.

    The version of the node counts the changes.
    """

    _what = "list of quotas"
    quotas: Quotas = field(default_factory=Quotas)

    @staticmethod
    def path() -> str:
        """Return the path of the only node."""
        return join(SECURITY, "quotas")

    def encode(self) -> bytes:
        """See ``Value.encode``.

        Raises:
            InvalidArgument: The value would be too large for ZooKeeper.
        """
        data = super(QuotaList, self).encode()
        if len(data) > QUOTAS_BYTES_MAX:
            raise InvalidArgument(
                f"{len(self.quotas)} quotas have {len(data)} bytes, at most {QUOTAS_BYTES_MAX} are "
                "stored: give user:* the limits that most users have"
            )
        return data

    def _to_json(self) -> dict[str, Any]:
        return {"quotas": [str(each) for each in self.quotas]}

    @classmethod
    def _from_json(cls, document: Mapping[str, Any]) -> Self:
        texts = document["quotas"]
        if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
            raise TypeError("quotas is not a list of strings")
        return cls(quotas=Quotas(map(Quota.parse, texts)))
