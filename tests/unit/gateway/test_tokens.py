"""The file of tokens, and what a token may do."""

import logging
import os
from pathlib import Path

import pytest
from support.cases import case

from vq.errors import InvalidArgument
from vq.gateway.bearer import PREFIX, make_token
from vq.gateway.problems import RightRequired, TokenRequired
from vq.gateway.tokens import ANYBODY, Caller, TokenFile, add_entry, entry_of, parse
from vq.security.rules import Resource, Right

TOPIC, GROUP = Resource.TOPIC, Resource.GROUP
HEAD = "version = 1\n"


class Now:
    def __init__(self) -> None:
        self.value = 0.0

    def __call__(self) -> float:
        self.value += 2.0  # each request comes so late that the file is looked at
        return self.value


def write(path: Path, text: str) -> Path:
    beside = path.with_suffix(".new")
    beside.touch(mode=0o600)
    beside.write_text(text)
    beside.replace(path)
    return path


def entry(name: str = "shop", token: str = "secret") -> str:
    return entry_of(name, token, write=["orders.*"], read=["orders.*"], groups=["shop-*"])


def test_a_right_is_that_of_a_name_or_of_a_pattern() -> None:
    caller = Caller("shop", write=("orders.*",), read=("price?",), groups=("g",))
    for right, resource, name, may in (
        (Right.WRITE, TOPIC, "orders.eu", True),
        (Right.WRITE, TOPIC, "orders", False),
        (Right.READ, TOPIC, "orders.eu", False),
        (Right.READ, TOPIC, "prices", True),
        (Right.READ, TOPIC, "price?", True),
        (Right.READ, TOPIC, "price*", False),
        (Right.READ, TOPIC, "price", False),
        (Right.READ, GROUP, "g", True),
        (Right.READ, GROUP, "gg", False),
        (Right.WRITE, TOPIC, "orders.*", True),
        (Right.WRITE, TOPIC, "*", False),
        (Right.WRITE, TOPIC, "order?.x", False),
    ):
        with case(right, resource, name):
            assert caller.may(right, resource, name) is may
            assert ANYBODY.may(right, resource, name)
    with pytest.raises(RightRequired, match="token 'shop' may not write topic 'x'"):
        caller.check(Right.WRITE, TOPIC, "x")
    with pytest.raises(RightRequired, match="may not join group 'x'"):
        caller.check(Right.READ, GROUP, "x")


def test_a_pattern_takes_nothing_of_vq_itself() -> None:
    every = Caller("all", write=("*",), read=("*", "_vq.dlq.g"), groups=("*",))
    assert not every.may(Right.READ, TOPIC, "_vq.dlq.other")
    assert every.may(Right.READ, TOPIC, "_vq.dlq.g")
    assert not every.may(Right.WRITE, TOPIC, "_vq.transactions")


def test_the_file_has_the_hash_and_finds_the_token(tmp_path: Path) -> None:
    token = make_token()
    path = write(tmp_path / "tokens", HEAD + entry(token=token))
    assert token not in path.read_text()
    file = TokenFile(path)
    assert file.caller_of(f"Bearer {token}").name == "shop"
    assert file.caller_of(f"bearer {token}").name == "shop"
    for header in (None, "", token, "Bearer", "Bearer ", f"Basic {token}", f"Bearer {token}x"):
        with case(header), pytest.raises(TokenRequired):
            file.caller_of(header)
    with pytest.raises(TokenRequired, match="200 characters"):
        file.caller_of("Bearer " + "x" * 10_000)


def test_a_changed_file_counts_without_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "tokens", HEAD + entry(token="old"))
    file = TokenFile(path, now=Now())
    write(path, HEAD + entry(token="new"))
    assert file.caller_of("Bearer new").name == "shop"
    with pytest.raises(TokenRequired):
        file.caller_of("Bearer old")


@pytest.mark.parametrize("broken", ["half-written", "gone", "open to others"])
def test_a_file_that_cannot_be_used_leaves_the_tokens_as_they_were(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    """Somebody writes it just now: clients go on, and the log says so."""
    path = write(tmp_path / "tokens", HEAD + entry())
    file = TokenFile(path, now=Now())
    if broken == "half-written":
        write(path, (HEAD + entry(token="new"))[:-30])
    elif broken == "gone":
        path.unlink()
    else:
        path.chmod(0o644)
    with caplog.at_level(logging.ERROR):
        assert file.caller_of("Bearer secret").name == "shop"
    assert "the tokens stay as they were" in caplog.text
    write(path, HEAD + entry(token="new"))
    assert file.caller_of("Bearer new").name == "shop"


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o660, 0o666])
def test_a_file_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    path = write(tmp_path / "tokens", HEAD + entry())
    path.chmod(mode)
    with pytest.raises(InvalidArgument, match=rf"mode {mode:04o}.*chmod 600"):
        TokenFile(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "begin the file with `version = 1`"),
        ("version = 2\n", "version = 2; this vq reads version 1"),
        ("version = true\n", "reads version 1"),
        ("version = 1\ntokens = []\n", "unknown keys"),
        ("version = 1\ntoken = 5\n", r"\[\[token\]\]"),
        ("version = 1\n[[token]]\n", "token name ''"),
        (HEAD + entry().replace("shop-*", "shop/*"), "is not 1 to 200"),
        (HEAD + entry().replace('groups = ["shop-*"]', 'groups = "x"'), "not a list"),
        (HEAD + entry() + "more = 1\n", "unknown key 'more'"),
        (HEAD + entry() + entry("other"), "is there twice"),
        (HEAD + entry() + entry(token="other"), "shop is there twice"),
        (HEAD + entry().replace('sha256 = "', 'sha256 = "A'), "64 hexadecimal digits"),
        ("version = 1\n[[token", "not TOML"),
    ],
)
def test_an_entry_that_is_none_is_told(text: str, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        parse(text)


def test_an_entry_is_added_behind_the_others_and_nobody_else_may_read_the_file(
    tmp_path: Path,
) -> None:
    path = tmp_path / "tokens"
    add_entry(path, entry())
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text(path.read_text().replace("version = 1", "# ours\nversion = 1"))
    add_entry(path, entry("other", "another"))
    assert "# ours" in path.read_text()
    assert [each.caller.name for each in parse(path.read_text())] == ["shop", "other"]
    before = path.read_text()
    with pytest.raises(InvalidArgument, match="shop is there twice"):
        add_entry(path, entry("shop", "third"))
    assert path.read_text() == before
    assert os.listdir(tmp_path) == ["tokens"]


def test_a_token_cannot_be_guessed() -> None:
    made = {make_token() for _ in range(100)}
    assert len(made) == 100
    assert all(each.startswith(PREFIX) and len(each) > 40 for each in made)
