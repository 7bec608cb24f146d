"""The texts of the console: each is in every catalogue, and none is outside of them."""

import re
import subprocess
import sys
from pathlib import Path

import jinja2

ROOT = Path(__file__).parents[4]
TEMPLATES = ROOT / "vq" / "console" / "templates"
#: Names of things, which are the same in every language.
NAMES = {"vq", "CSV", "JSON", "ZooKeeper", "–", "·", "✓"}


def test_every_text_is_in_every_catalogue() -> None:
    """``tools/translations.py`` adds what is new; a text without a translation fails here."""
    found = subprocess.run(
        [sys.executable, "tools/translations.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr


def test_placeholders_are_the_same_in_every_language() -> None:
    from vq.console.web.languages import LANGUAGES, catalogue

    for language in LANGUAGES:
        for english, text in catalogue(language).items():
            assert sorted(re.findall(r"%\(\w+\)s", english)) == sorted(
                re.findall(r"%\(\w+\)s", text)
            ), english


def test_no_text_has_a_percent_sign_of_its_own() -> None:
    """A page that shows it would fail: what follows the sign is taken for a placeholder."""
    from vq.console.web.languages import LANGUAGES, catalogue

    for language in LANGUAGES:
        for texts in catalogue(language).items():
            for text in texts:
                assert "%" not in re.sub(r"%\(\w+\)s", "", text), text


def test_no_template_has_a_text_of_its_own() -> None:
    """What stands between tags comes from the catalogues, or is a name."""
    environment = jinja2.Environment(extensions=["jinja2.ext.i18n"], autoescape=True)
    for path in sorted(TEMPLATES.glob("*.html")):
        pieces = "".join(
            value if kind == "data" else "\0"
            for _, kind, value in environment.lex(path.read_text())
            if kind in ("data", "variable_begin", "block_begin")
        )
        outside = re.sub(r"<(style|script|code)\b.*?</\1>", "", pieces, flags=re.DOTALL)
        outside = re.sub(r"<[^>]*>", "\0", outside)
        outside = re.sub(r'[\w-]+="[^"]*"', "\0", outside)  # attributes that a macro gives
        for text in filter(None, (each.strip() for each in outside.split("\0"))):
            letters = re.findall(r"[A-Za-z]{2,}", text)
            assert not set(letters) - NAMES, (path.name, text)
