"""Prints cases.json as lines that Vectors.java reads: python flatten.py cases.json > cases.txt"""

import json
import sys
from pathlib import Path
from typing import Any


def flatten(tagged: dict[str, Any]) -> list[str]:
    ((kind, value),) = tagged.items()
    match kind:
        case "repeated":
            return flatten({"string": value["piece"] * value["count"] + value["tail"]})
        case "string":
            return ["string", "x" + value.encode().hex()]
        case "list":
            return ["list", str(len(value)), *(w for item in value for w in flatten(item))]
        case "map":
            pairs = [w for k, v in value.items() for w in flatten({"string": k}) + flatten(v)]
            return ["map", str(len(value)), *pairs]
        case _:
            return [kind, json.dumps(value).strip('"')]


if __name__ == "__main__":
    for name, tagged in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")).items():
        print(name, " ".join(flatten(tagged)), sep="\t")
