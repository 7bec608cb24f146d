"""``vq gateway``: what it needs to start, and tokens."""

import json
import sys
from pathlib import Path

import pytest

from vq.cli import main
from vq.gateway.bearer import digest_of
from vq.gateway.tokens import parse


def test_without_its_packages_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "vq.gateway.server", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main.run(["gateway"]) == 1
    said = capsys.readouterr().err
    assert "vq gateway needs the package uvicorn" in said
    assert "pip install" in said


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--host", "10.0.0.1"], "vq gateway token NAME"),
        (["--host", "nowhere at all"], "nowhere at all"),
        (["--tokens", "/none/tokens.toml", "--host", "0.0.0.0"], "--allowed-host"),
        (["--allow-origin", "shop.example"], "has no scheme"),
        (["token", "shop"], "would have no right"),
        (["token", "a/b", "--read", "x"], "a/b"),
        (["token", "shop", "--read", "a b"], "a b"),
        (["token", "shop", "--read", "_vq.*"], "vq's own"),
    ],
)
def test_what_cannot_be_is_told_before_anything_is_opened(
    capsys: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    assert main.run(["gateway", *flags]) == 2
    assert said in capsys.readouterr().err


def test_a_token_is_shown_once_and_its_entry_is_in_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tokens"
    flags = ["--write", "orders.*", "--read", "orders.*", "--read", "prices", "--group", "shop-*"]
    command = ["gateway", "token", "shop", *flags]
    assert main.run([*command, "--tokens", str(path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    [entry] = parse(path.read_text())
    assert entry.digest == digest_of(shown["token"])
    assert shown["token"] not in path.read_text()
    assert entry.caller.read == ("orders.*", "prices")
    assert main.run(command) == 0
    token, _, text = capsys.readouterr().out.partition("\n\n")
    [other] = parse("version = 1\n" + text)
    assert other.digest == digest_of(token.strip())
    assert main.run([*command, "--tokens", str(path)]) == 2
    assert "shop is there twice" in capsys.readouterr().err
