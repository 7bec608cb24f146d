"""What lies in deploy/ is what the operator's page shows: one cannot go on without the other."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(("name", "language"), [("vq@.service", "ini"), ("broker.toml", "toml")])
def test_the_page_shows_the_file(name: str, language: str) -> None:
    """As one of its blocks, letter by letter."""
    page = (ROOT / "docs" / "howto" / "set-up-a-broker.md").read_text()
    file = (ROOT / "deploy" / name).read_text()
    assert f"```{language}\n{file}```\n" in page


def test_the_unit_leaves_a_broker_little_to_do_harm_with() -> None:
    """At most 3 of 10, as `systemd-analyze security` counts; the page tells the number."""
    tool = shutil.which("systemd-analyze")
    if tool is None:
        if os.environ.get("CI"):
            pytest.fail("systemd-analyze is missing: apt install systemd")
        pytest.skip("systemd-analyze is missing")
    unit = ROOT / "deploy" / "vq@.service"
    told = subprocess.run(
        [tool, "security", "--offline=true", "--no-pager", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", told)
    assert found is not None, told
    assert float(found[1]) <= 3
    text = unit.read_text()
    assert "ProcSubset" not in re.sub(r"^#.*$", "", text, flags=re.MULTILINE), "see the comment"
