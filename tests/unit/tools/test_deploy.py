"""What lies in deploy/ is what the operator's page shows: one cannot go on without the other."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(("name", "language"), [("vq@.service", "ini"), ("broker.toml", "toml")])
def test_the_page_shows_the_file(name: str, language: str) -> None:
    """As one of its blocks, letter by letter."""
    page = (ROOT / "docs" / "operations.md").read_text()
    file = (ROOT / "deploy" / name).read_text()
    assert f"```{language}\n{file}```\n" in page
