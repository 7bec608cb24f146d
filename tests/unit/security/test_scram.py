"""SCRAM-SHA-256: the vectors of RFC 7677, an independent witness, and attacks."""

import base64
import hashlib
import hmac
from collections import Counter
from typing import Any

import pytest
import scramp

from vq.errors import InvalidArgument, NotAuthenticated
from vq.security.scram import (
    ITERATIONS,
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    ClientFirst,
    ScramKeys,
    ScramUser,
    ServerChallenge,
    ServerFirst,
    derive,
    prepared,
)

# RFC 7677, section 3
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_NONCE, SERVER_NONCE = "rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
CHALLENGE = (
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
)
FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SIGNATURE = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="

KEYS = derive("pencil", SALT, 4_096)
OTHER_KEYS = derive("pen", SALT, 4_096)
USER = ScramUser(SALT, 4_096, (KEYS.secret,))
CLUSTER_SECRET = b"s" * 32


def challenge(
    first: bytes = FIRST, known: ScramUser | None = USER, nonce: str = SERVER_NONCE
) -> ServerChallenge:
    return ServerFirst(first).challenge(known, CLUSTER_SECRET, nonce)


def answer(message: bytes, keys: ScramKeys = KEYS, user: str = "user") -> bytes:
    return ClientFirst(user, CLIENT_NONCE).challenged(message).final(keys).message


def test_the_vector_of_the_rfc() -> None:
    client = ClientFirst("user", CLIENT_NONCE)
    assert client.message == FIRST
    server = challenge()
    assert server.message == CHALLENGE
    challenged = client.challenged(server.message)
    assert (challenged.salt, challenged.iterations) == (SALT, 4_096)
    final = challenged.final(KEYS)
    assert final.message == FINAL
    secret, signature = server.finish(final.message)
    assert (secret, signature) == (KEYS.secret, SIGNATURE)
    final.finish(signature)


@pytest.mark.parametrize("password", ["pencil", "pässwörd", "\u2168 a\u00ad\u00a0b", "x" * 256])
def test_our_client_logs_in_to_the_server_of_another_implementation(password: str) -> None:
    mechanism = scramp.ScramMechanism("SCRAM-SHA-256")
    stored = mechanism.make_auth_info(password, iteration_count=ITERATIONS_MIN)
    server = mechanism.make_server(lambda _: stored)
    client = ClientFirst("user", CLIENT_NONCE)
    server.set_client_first(client.message.decode())
    challenged = client.challenged(server.get_server_first().encode())
    final = challenged.final(derive(password, challenged.salt, challenged.iterations))
    server.set_client_final(final.message.decode())
    final.finish(server.get_server_final().encode())


@pytest.mark.parametrize("password", ["pencil", "pässwörd", "\u2168 a\u00ad\u00a0b", "x" * 256])
def test_the_client_of_another_implementation_logs_in_to_our_server(password: str) -> None:
    user = ScramUser(SALT, ITERATIONS, (derive(password, SALT, ITERATIONS).secret,))
    client: Any = scramp.ScramClient(["SCRAM-SHA-256"], "user", password)
    server = challenge(client.get_client_first().encode(), user)
    client.set_server_first(server.message.decode())
    _, signature = server.finish(client.get_client_final().encode())
    client.set_server_final(signature.decode())


def test_two_secrets_are_valid_while_a_password_is_changed() -> None:
    both = ScramUser(SALT, 4_096, (OTHER_KEYS.secret, KEYS.secret))
    for keys in (KEYS, OTHER_KEYS):
        server = challenge(known=both)
        assert server.finish(answer(server.message, keys))[0] == keys.secret


# The broker is attacked ---------------------------------------------------------------------------
@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"\xff",
        b"n,,",
        b"n,,n=user",
        b"n,,r=abc,n=user",
        b"n,,n=user,r=",
        b"n,,n=user,r=a\x00b",
        b"n,,n=user,r=" + b"a" * 257,
        b"n,,n=user,r=abc,x=1",
        b"n,,m=ext,n=user,r=abc",  # an extension that must be understood
        b"n,,n=,r=abc",
        b"n,,n=us=2Cer,r=abc",
        b"n,,n=../user,r=abc",
        b"p=tls-unique,,n=user,r=abc",
        b"p=tls-server-end-point,,n=user,r=abc",
        b"x,,n=user,r=abc",
        b"n,a=admin,n=user,r=abc",  # CVE-2017-12610
        b"n,a=,n=user,r=abc",
        b"n,admin,n=user,r=abc",
    ],
)
def test_a_crafted_first_message_is_refused(first: bytes) -> None:
    with pytest.raises(NotAuthenticated):
        ServerFirst(first)


def test_a_client_may_name_itself_as_the_one_that_it_acts_for() -> None:
    server = challenge(b"n,a=user,n=user,r=abc")
    with pytest.raises(NotAuthenticated, match="not for the challenge"):
        server.finish(answer_with(server, gs2=b"n,,"))  # what was said first is proved, too
    server.finish(answer_with(server, gs2=b"n,a=user,"))


def answer_with(
    server: ServerChallenge, *, gs2: bytes, bare: str = "n=user,r=abc", keys: ScramKeys = KEYS
) -> bytes:
    """Return the proof of a client that is not ours."""
    nonce = server.message.decode().split(",")[0]
    without_proof = f"c={base64.b64encode(gs2).decode()},{nonce}"
    signed = f"{bare},{server.message.decode()},{without_proof}".encode()
    signature = hmac.digest(keys.secret.stored_key, signed, "sha256")
    proof = bytes(a ^ b for a, b in zip(keys.client_key, signature, strict=True))
    return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()


def test_the_proof_of_one_challenge_is_none_for_another() -> None:
    recorded = answer(challenge().message)
    with pytest.raises(NotAuthenticated, match="not for the challenge"):
        challenge(nonce="another").finish(recorded)


def test_the_proof_of_one_user_is_none_for_another() -> None:
    """Both have the same password and salt, and still the name is part of what is proved."""
    server = challenge(b"n,,n=admin,r=" + CLIENT_NONCE.encode())
    with pytest.raises(NotAuthenticated, match="the user is unknown, or the password is wrong"):
        server.finish(answer(server.message))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"r=rOpr", b"r=rOpR"),  # the nonce
        (b"k0,p=", b"k1,p="),
        (b"c=biws", b"c=eSws"),  # the flag of channel binding: y,,
        (b"p=dHzb", b"p=eHzb"),
        (b"p=dHzb", b"x=1,p=dHzb"),
        (b"dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=", b""),
        (b"dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=", b"dHzb"),
        (b"dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=", b"%%%"),
        (b",p=", b""),
        (FINAL, b""),
        (FINAL, b"\xff"),
    ],
)
def test_an_altered_final_message_is_refused(old: bytes, new: bytes) -> None:
    server = challenge()
    altered = FINAL.replace(old, new)
    assert altered != FINAL
    with pytest.raises(NotAuthenticated):
        server.finish(altered)


def test_an_unknown_user_gets_a_challenge_like_all_others_and_always_the_same_salt() -> None:
    def told(name: str, known: ScramUser | None, secret: bytes = CLUSTER_SECRET) -> list[str]:
        first = ServerFirst(b"n,,n=" + name.encode() + b",r=abc")
        nonce, *rest = first.challenge(known, secret, SERVER_NONCE).message.decode().split(",")
        assert nonce == f"r=abc{SERVER_NONCE}"
        return rest

    real = told("anna", ScramUser(SALT, ITERATIONS, (KEYS.secret,)))
    made_up = told("bert", None)
    assert made_up == told("bert", None)
    assert made_up != told("carl", None)
    assert made_up != told("bert", None, b"t" * 32)
    assert list(map(len, made_up)) == list(map(len, real))
    assert made_up[1] == real[1] == f"i={ITERATIONS}"


def test_a_refusal_costs_the_same_whether_or_not_the_user_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The work is counted: a clock would measure the machine."""
    done: Counter[str] = Counter()
    digest, compare, sha256 = hmac.digest, hmac.compare_digest, hashlib.sha256
    monkeypatch.setattr(hmac, "digest", lambda *given: (done.update(["digest"]), digest(*given))[1])
    monkeypatch.setattr(
        hmac, "compare_digest", lambda a, b: (done.update(["compare"]), compare(a, b))[1]
    )
    monkeypatch.setattr(
        hashlib, "sha256", lambda *given: (done.update(["sha256"]), sha256(*given))[1]
    )
    texts, counts = set(), []
    rotated = ScramUser(SALT, 4_096, (KEYS.secret, OTHER_KEYS.secret))
    for known in (USER, rotated, ScramUser(SALT, 4_096, ()), None):
        wrong = derive("wrong", SALT, 4_096)
        done.clear()
        server = challenge(known=known)
        final = answer(server.message, wrong)
        with pytest.raises(NotAuthenticated) as refusal:
            server.finish(final)
        texts.add(str(refusal.value))
        counts.append(dict(done))
    assert len(texts) == 1
    assert all(each == counts[0] for each in counts)
    assert counts[0]["compare"] == 3  # the repeated challenge, and both secrets


def test_nobody_logs_in_as_an_unknown_user_even_with_what_the_cluster_makes_up() -> None:
    """Whoever knows the cluster's secret can compute the stored key, and that is no password."""
    server = challenge(known=None)
    stored_key = hmac.digest(CLUSTER_SECRET, b"vq unknown user 1 stored key user", "sha256")
    keys = ScramKeys(stored_key, KEYS.secret._replace(stored_key=stored_key))
    with pytest.raises(NotAuthenticated):
        server.finish(answer_with(server, gs2=b"n,,", bare=FIRST.decode()[3:], keys=keys))


# The client is attacked ---------------------------------------------------------------------------
@pytest.mark.parametrize(
    "rounds",
    [
        "1",
        "0",
        "-1",
        str(ITERATIONS_MIN - 1),
        str(ITERATIONS_MAX + 1),
        "1000000000",
        "9" * 5_000,
        "",
        "4096.0",
        " 4096",
        "٤٠٩٦",
        "+4096",
    ],
)
def test_the_client_refuses_a_number_of_rounds_outside_the_bounds(rounds: str) -> None:
    client = ClientFirst("user", CLIENT_NONCE)
    with pytest.raises(NotAuthenticated) as refusal:
        client.challenged(CHALLENGE.replace(b"i=4096", b"i=" + rounds.encode()))
    assert len(str(refusal.value)) < 300


@pytest.mark.parametrize(
    "message",
    [
        CHALLENGE.replace(b"r=rOpr", b"r=xOpr"),  # another nonce
        CHALLENGE.replace(SERVER_NONCE.encode(), b""),  # only the client's own nonce
        CHALLENGE.replace(b"W22", b"!22"),
        b"m=ext," + CHALLENGE,
        CHALLENGE + b",x=1",
        CHALLENGE[:-7],
        b"e=other-error",
        b"",
        b"\xff",
    ],
)
def test_the_client_refuses_a_challenge_that_is_not_for_it(message: bytes) -> None:
    with pytest.raises(NotAuthenticated):
        ClientFirst("user", CLIENT_NONCE).challenged(message)


@pytest.mark.parametrize(
    "message",
    [b"", b"v=", b"v=6rri", SIGNATURE.replace(b"6", b"7"), b"e=invalid-proof", b"\xff", b"v=%"],
)
def test_the_client_refuses_a_broker_that_does_not_know_the_keys(message: bytes) -> None:
    final = ClientFirst("user", CLIENT_NONCE).challenged(CHALLENGE).final(KEYS)
    with pytest.raises(NotAuthenticated):
        final.finish(message)


# Passwords ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("password", "said"),
    [
        ("", "empty"),
        ("\u00ad", "empty"),  # a soft hyphen is nothing
        ("a\x07b", "forbids"),
        ("\u0221", "forbids"),  # not in Unicode 3.2
        ("\u0627\u0031", "directions"),
        ("x" * 257, "257 bytes"),
    ],
)
def test_a_password_that_cannot_be_one_is_refused_and_not_shown(password: str, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said) as refusal:
        prepared(password)
    assert not password or password not in str(refusal.value)


@pytest.mark.parametrize(
    ("password", "expected"),
    [  # RFC 4013, section 3
        ("I\u00adX", "IX"),
        ("user", "user"),
        ("USER", "USER"),
        ("\u00aa", "a"),
        ("\u2168", "IX"),
    ],
)
def test_a_password_has_one_form(password: str, expected: str) -> None:
    assert prepared(password) == expected.encode()


def test_no_text_shows_a_key() -> None:
    for value in (KEYS, USER, KEYS.secret, (KEYS,)):
        for key in (KEYS.client_key, *KEYS.secret):
            assert repr(key)[2:10] not in repr(value)
