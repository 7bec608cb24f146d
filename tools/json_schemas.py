"""Write docs/reference/json from the schemas of the commands: one file each.

    python tools/json_schemas.py      write the files, and remove those of commands that are gone

A test compares the committed files with `render()`.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from vq.cli.schemas import schemas

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "reference" / "json"
DIALECT = "http://json-schema.org/draft-07/schema#"


def render() -> Mapping[str, str]:
    """Return the files by their names."""
    files = {}
    for name, schema in schemas().items():
        title = name if name in {"error", "remark"} else f"vq {name} --json"
        document = {"$schema": DIALECT, "title": title, **schema}
        files[f"{name.replace(' --', '-').replace(' ', '-')}.json"] = (
            json.dumps(document, indent=1) + "\n"
        )
    return files


if __name__ == "__main__":
    TARGET.mkdir(parents=True, exist_ok=True)
    files = render()
    for path in TARGET.glob("*.json"):
        if path.name not in files:
            path.unlink()
    for name, content in files.items():
        (TARGET / name).write_text(content)
