"""Whose certificate it is: rules that turn the names in a TLS certificate into users.

    rule                                  a certificate with          is of
    DNS:anna.clients.example=anna         this DNS name               anna
    DNS:*.clients.example=*               bert.clients.example        bert
    URI:spiffe://example/ns/shop/sa/*=*   …/sa/billing                billing
    EMAIL:*@example.org=*                 carl@example.org            carl
    CN:*=*                                the common name dora        dora

A ``*`` stands for letters, digits, ``_`` and ``-``, at least one, so it never reaches over a dot, a
slash or an ``@``. All else is compared as it is. A name that no rule fits is nobody's: there is no
rule but those that are given.

Nothing here verifies a certificate: TLS has done so before.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from vq.errors import InvalidArgument
from vq.limits import is_valid_name
from vq.shown import shown

#: What a rule may look at, and what ``ssl`` calls it in ``subjectAltName``.
_ALTERNATIVE: Final[Mapping[str, str]] = {"DNS": "DNS", "URI": "URI", "EMAIL": "email"}
_COMMON_NAME: Final = "CN"
_ANY: Final = "*"
RULES_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class CertificateRule:
    """One rule.

    Attributes:
        kind: ``DNS``, ``URI``, ``EMAIL`` or ``CN``.
        pattern: What fits a whole name of that kind.
        user: Whose such a certificate is; ``*``: of what the ``*`` of the pattern stands for.
    """

    kind: str
    pattern: re.Pattern[str]
    user: str

    def user_of(self, name: str) -> str | None:
        """Return whose a name is; None: the rule does not fit, or it gives no valid name."""
        found = self.pattern.fullmatch(name)
        if found is None:
            return None
        user = found[1] if self.user == _ANY else self.user
        return user if is_valid_name(user) else None


def parse_certificate_rules(rules: Sequence[str]) -> tuple[CertificateRule, ...]:
    """Return the rules that settings give.

    Raises:
        InvalidArgument: One is no rule; the error shows it.
    """
    if len(rules) > RULES_MAX:
        raise InvalidArgument(f"{len(rules)} rules for certificates, at most {RULES_MAX} may be")
    return tuple(map(_parse, rules))


def _parse(rule: str) -> CertificateRule:
    kind, separator, rest = rule.partition(":")
    name, equals, user = rest.rpartition("=")
    if not separator or not equals or not name or kind not in {*_ALTERNATIVE, _COMMON_NAME}:
        raise InvalidArgument(
            f"{shown(rule)} is not a rule for certificates: KIND:NAME=USER with DNS, URI, EMAIL or "
            "CN as KIND, such as 'DNS:*.clients.example=*'"
        )
    stars = name.count(_ANY)
    if stars > 1 or (user == _ANY) != (stars == 1):
        raise InvalidArgument(
            f"{shown(rule)}: the name has one '*' if the user is '*', and none otherwise; a rule "
            "that makes many certificates one user would hide who connects"
        )
    if user != _ANY and not is_valid_name(user):
        raise InvalidArgument(
            f"{shown(rule)}: {shown(user)} is not a name of a user: 1 to 200 characters of A-Z a-z "
            "0-9 . _ -"
        )
    if kind == "DNS":
        name = name.lower()
    pattern = re.escape(name).replace(re.escape(_ANY), "([A-Za-z0-9_-]+)")
    return CertificateRule(kind, re.compile(pattern), user)


def users_of(
    certificate: Mapping[str, Any] | None, rules: Sequence[CertificateRule]
) -> frozenset[str]:
    """Return whose a verified certificate is by the rules; mostly one user, or none.

    Args:
        certificate: As ``ssl.SSLSocket.getpeercert`` returns it; None, or empty: there is none.
        rules: Those of the broker.
    """
    names = list(_names(certificate or {}))
    return frozenset(
        user
        for rule in rules
        for kind, name in names
        if kind == rule.kind and (user := rule.user_of(name)) is not None
    )


def _names(certificate: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the names in a certificate with their kinds."""
    for kind, told in _ALTERNATIVE.items():
        for found, name in certificate.get("subjectAltName", ()):
            if found == told:
                yield kind, name.lower() if kind == "DNS" else name
    common = [
        value
        for part in certificate.get("subject", ())
        for key, value in part
        if key == "commonName"
    ]
    if len(common) == 1:  # of several, nobody knows which one the authority has looked at
        yield _COMMON_NAME, common[0]
