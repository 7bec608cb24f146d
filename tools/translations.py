"""Bring the catalogues of the console to the texts that its templates and pages have.

    python tools/translations.py           adds what is new without a text, drops what is gone
    python tools/translations.py --check   fails if a text is missing or not used any more

English is in the templates and in ``N_("…")``; ``vq/console/locale/*/messages.po`` has the others.
"""

import sys
from pathlib import Path

from babel.messages.catalog import Catalog
from babel.messages.extract import extract_from_dir
from babel.messages.pofile import read_po, write_po

ROOT = Path(__file__).resolve().parent.parent
CONSOLE = ROOT / "vq" / "console"
METHODS = [("**.py", "python"), ("templates/**.html", "jinja2.ext:babel_extract")]
OPTIONS = {"templates/**.html": {"trimmed": "true", "encoding": "utf-8"}}
KEYWORDS = {"_": None, "N_": None, "gettext": None}
#: Words of states that come from the cluster, and are shown translated.
STATES = (
    *("ok", "warning", "stalled", "stopped", "unknown"),
    *("rw", "ro", "closed", "failed", "quarantined", "sealed", "deleted", "creating", "deleting"),
    *("warn", "relieve", "refuse", "stop", "gone", "silent"),
    *("open", "prepared", "committed", "rolled_back", "resending", "resent"),
    *("begun", "done", "failed", "viewer", "operator", "admin"),
    *("draft", "running", "interrupted", "cancelled"),
)


def texts() -> dict[str, list[str]]:
    """Return all English texts with the files that have them, sorted."""
    found: dict[str, list[str]] = {text: [] for text in STATES}
    for file, _, message, _, _ in extract_from_dir(
        CONSOLE, METHODS, OPTIONS, keywords=KEYWORDS, comment_tags=()
    ):
        text = message if isinstance(message, str) else message[0]
        if text.strip():
            places = found.setdefault(text, [])
            if file not in places:
                places.append(file)
    return dict(sorted(found.items()))


def main() -> int:
    """Update or check all catalogues; return the exit code."""
    wanted, bad = texts(), 0
    for path in sorted((CONSOLE / "locale").glob("*/messages.po")):
        with path.open("rb") as file:
            present = {str(each.id): str(each.string) for each in read_po(file) if each.id}
        missing = [text for text in wanted if not present.get(text)]
        gone = [text for text in present if text not in wanted]
        name = path.parent.name
        if "--check" in sys.argv[1:]:
            for text in missing:
                print(f"{name}: no text for {text!r}")
            for text in gone:
                print(f"{name}: {text!r} is not used any more")
            bad += len(missing) + len(gone)
            continue
        catalogue = Catalog(name, project="vq console", version="", fuzzy=False)
        for text, places in wanted.items():
            catalogue.add(text, present.get(text, ""), [(each, 0) for each in sorted(places)])
        with path.open("wb") as file:
            write_po(file, catalogue, omit_header=True, include_lineno=False, width=0)
        print(f"{name}: {len(wanted)} texts, {len(missing)} to translate, {len(gone)} dropped")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
