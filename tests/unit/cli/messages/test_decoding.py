"""``--as``, ``--descriptors`` and ``--type``: contents as text."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from support.protobuf import SHOP, order_class

from vq.cli.base.options import Invocation, command_options
from vq.cli.messages.decoding import Decoding, decodes
from vq.model import Message

CONTENTS = {"json": b'{"a":\n1}', "order": order_class()(number=7, state=1).SerializeToString()}


@click.command()
@command_options
@decodes
def told(invocation: Invocation, *, decoding: Decoding | None) -> None:
    """Print two messages of each content."""
    for number, content in enumerate(2 * list(CONTENTS.values())):
        message = Message("t", content, partition=0, offset=number)
        shown = message if decoding is None else decoding(message)
        click.echo(shown.content)


@pytest.fixture
def shop(tmp_path: Path) -> str:
    """A file with a descriptor set."""
    (tmp_path / "shop.desc").write_bytes(SHOP)
    return str(tmp_path / "shop.desc")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(told, arguments)


def test_contents_are_as_they_are_unless_it_is_asked_for() -> None:
    assert run().stdout_bytes.startswith(CONTENTS["json"] + b"\n" + CONTENTS["order"])


def test_each_content_is_one_line_and_the_first_that_is_not_so_is_told(shop: str) -> None:
    ended = run("--descriptors", shop, "--type", "shop.Order")
    order = '{"number": 7, "state": "PAID"}'
    hexadecimal = CONTENTS["json"].hex()
    assert ended.stdout.splitlines() == [hexadecimal, order, hexadecimal, order]
    assert ended.stderr.count("is not protobuf") == 1
    assert "offset 0 of t-0" in ended.stderr
    first = run("--as", "auto", "--descriptors", shop, "--type", "shop.Order")
    assert first.stdout.splitlines() == ['{"a": 1}', order] * 2
    assert first.stderr == ""
    assert run("--as", "hex").stdout.splitlines()[0] == hexadecimal


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--as", "protobuf"], "--descriptors FILE and --type NAME"),
        (["--type", "shop.Order"], "--descriptors FILE and --type NAME"),
        (["--as", "json", "--json"], "exclude one another"),
        (["--as", "xml"], "xml"),
        (["--descriptors", "/nowhere/x.desc", "--type", "a"], "cannot be read"),
        (["--descriptors", "/", "--type", "a"], "directory"),
        (["--descriptors", __file__, "--type", "a"], "no descriptor set"),
    ],
)
def test_what_makes_no_sense_is_refused_with_why(arguments: list[str], why: str) -> None:
    ended = run(*arguments)
    assert ended.exit_code != 0
    assert why in f"{ended.output} {ended.exception}"


def test_a_type_that_the_set_does_not_have_is_refused(shop: str) -> None:
    ended = run("--descriptors", shop, "--type", "shop.Ordre")
    assert ended.exit_code != 0
    assert "shop.Order" in f"{ended.output} {ended.exception}"
