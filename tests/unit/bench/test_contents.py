"""Measured contents are the same in every run and on every machine."""

import hashlib
import json

import pytest

from bench.contents import KINDS, log_lines, orders

DIGESTS = {
    "orders": "e372c5ac5d8fd614fbba12c42d0bfa51",
    "log lines": "bd43297f163117c460ae18a73a7175d1",
    "noise": "c9414f011715e41ea2a21f8a7e580087",
}


@pytest.mark.parametrize("kind", KINDS)
def test_contents_are_the_same_in_every_run(kind: str) -> None:
    assert hashlib.md5(KINDS[kind](7, 10_000)).hexdigest() == DIGESTS[kind]
    assert KINDS[kind](7, 10_000) != KINDS[kind](8, 10_000)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [0, 1, 128, 5_000])
def test_contents_have_the_size_that_was_asked_for(kind: str, size: int) -> None:
    assert len(KINDS[kind](1, size)) == size


def test_texts_are_whole_lines_until_the_cut() -> None:
    *lines, _ = orders(1, 5_000).split(b"\n")
    assert len({json.loads(line)["order_id"] for line in lines}) == len(lines) > 10
    assert all(b"com.shop." in line for line in log_lines(1, 5_000).split(b"\n")[:-1])
