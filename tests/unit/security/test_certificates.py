"""Rules that say whose a certificate is: exactly, and nothing by default."""

from typing import Any

import pytest

from vq.errors import InvalidArgument
from vq.security.certificates import RULES_MAX, parse_certificate_rules, users_of


def certificate(*names: tuple[str, str], common: tuple[str, ...] = ()) -> dict[str, Any]:
    """What ``getpeercert`` returns."""
    subject = (
        (("organizationName", "example"),),
        *((("commonName", each),) for each in common),
    )
    return {"subject": subject, "subjectAltName": names, "version": 3}


@pytest.mark.parametrize(
    ("rule", "shown", "users"),
    [
        ("DNS:anna.clients.example=anna", certificate(("DNS", "anna.clients.example")), {"anna"}),
        ("DNS:Anna.Clients.example=anna", certificate(("DNS", "ANNA.clients.EXAMPLE")), {"anna"}),
        ("DNS:*.clients.example=*", certificate(("DNS", "bert.clients.example")), {"bert"}),
        ("DNS:*.clients.example=*", certificate(("DNS", "a.b.clients.example")), set()),
        ("DNS:*.clients.example=*", certificate(("DNS", ".clients.example")), set()),
        ("DNS:*.clients.example=*", certificate(("DNS", "*.clients.example")), set()),
        ("DNS:*.clients.example=*", certificate(("DNS", "x.clients.example.evil.org")), set()),
        ("DNS:*.clients.example=*", certificate(("DNS", "evil.org/x.clients.example")), set()),
        ("DNS:*.clients.example=*", certificate(("DNS", "xxclientsxexample")), set()),
        ("DNS:*.clients.example=*", certificate(("DNS", "x.clients.example\n")), set()),
        ("DNS:*.clients.example=*", certificate(("DNS", "x\0.clients.example")), set()),
        ("DNS:*.clients.example=*", certificate(("URI", "x.clients.example")), set()),
        ("DNS:*.clients.example=*", certificate(common=("x.clients.example",)), set()),
        ("URI:spiffe://e/ns/shop/sa/*=*", certificate(("URI", "spiffe://e/ns/shop/sa/b")), {"b"}),
        ("URI:spiffe://e/ns/*/sa/b=*", certificate(("URI", "spiffe://e/ns/x/y/sa/b")), set()),
        ("EMAIL:*@example.org=*", certificate(("email", "carl@example.org")), {"carl"}),
        ("EMAIL:*@example.org=*", certificate(("email", "c@evil.org@example.org")), set()),
        ("CN:*=*", certificate(common=("dora",)), {"dora"}),
        ("CN:*=*", certificate(common=("dora", "admin")), set()),
        ("CN:*=*", certificate(), set()),
        ("CN:*=*", None, set()),
        ("CN:*=*", {}, set()),
        ("CN:a=b=anna", certificate(common=("a=b",)), {"anna"}),
    ],
)
def test_a_rule_fits_the_whole_name_of_its_kind(
    rule: str, shown: dict[str, Any] | None, users: set[str]
) -> None:
    assert users_of(shown, parse_certificate_rules([rule])) == users


def test_without_rules_a_certificate_is_nobodys() -> None:
    shown = certificate(("DNS", "anna.clients.example"), common=("admin",))
    assert users_of(shown, ()) == set()


def test_a_certificate_with_several_names_may_be_of_several_users() -> None:
    """Then the client says which one it is."""
    rules = parse_certificate_rules(["DNS:*.clients.example=*", "CN:*=*"])
    shown = certificate(
        ("DNS", "anna.clients.example"), ("DNS", "bert.clients.example"), common=("carl",)
    )
    assert users_of(shown, rules) == {"anna", "bert", "carl"}


@pytest.mark.parametrize(
    "rule",
    [
        "",
        "anna",
        "DNS:anna",
        "DNS:=anna",
        "dns:a=anna",
        "IP:10.0.0.1=anna",
        "DNS:*.*.example=*",
        "DNS:*.example=anna",  # all of them would be one user
        "DNS:a.example=*",
        "DNS:a.example=",
        "DNS:a.example=..",
        "DNS:a.example=a b",
        "CN:**=*",
    ],
)
def test_what_is_no_rule_is_refused(rule: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        parse_certificate_rules([rule])
    assert repr(rule) in str(refusal.value)


def test_rules_are_bounded() -> None:
    with pytest.raises(InvalidArgument, match=str(RULES_MAX)):
        parse_certificate_rules(["CN:a=a"] * (RULES_MAX + 1))
