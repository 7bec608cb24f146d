"""Writes cases.json: values that every Hessian 2 implementation is asked to encode.

A value is an object with one member that names its type, so that Java and JavaScript build exactly
this one. Run from the root of the repository: python tests/testdata/hessian/make_cases.py
"""

import json
from pathlib import Path
from typing import Any

Json = dict[str, Any]


def text(value: str) -> Json:
    return {"string": value}


def many(piece: str, count: int, tail: str = "") -> Json:
    return {"repeated": {"piece": piece, "count": count, "tail": tail}}


def items(*values: Json) -> Json:
    return {"list": list(values)}


def entries(**values: Json) -> Json:
    return {"map": values}


def cases() -> dict[str, Json]:
    """Return name → value."""
    out: dict[str, Json] = {"null": {"null": 0}, "true": {"bool": True}, "false": {"bool": False}}
    edges = [8, 15, 16, 47, 48, 2_047, 2_048, 262_143, 262_144, 2**31 - 1, 2**31]
    for number in sorted(
        {0, -1, *edges, *(-edge for edge in edges), *(-edge - 1 for edge in edges)}
    ):
        if -(2**31) <= number < 2**31:
            out[f"int {number}"] = {"int": number}
        out[f"long {number}"] = {"long": str(number)}
    for number in (2**53, 2**63 - 1, -(2**63)):
        out[f"long {number}"] = {"long": str(number)}
    for value in (0.0, 1.0, -128.0, 127.0, 128.0, -32768.0, 32767.0, 32768.0, 12.25, 3.14, 1e300):
        out[f"double {value}"] = {"double": value}
    for size in (0, 1, 31, 32, 1_023, 1_024, 32_768, 32_769, 70_000):
        out[f"ascii {size}"] = many("a", size)
        out[f"three-byte {size}"] = many("漢", size)
    out["latin"] = text("Grüße, señor")
    out["past z"] = many("z{|}~", 300)
    out["pair"] = text("a😀b")
    out["pairs 100"] = many("😀", 100)
    out["pair over a chunk's end"] = many("a", 32_767, "😀b")
    out["pair before a chunk's end"] = many("a", 32_766, "😀b")
    for size in (0, 1, 15, 16, 1_023, 1_024, 4_096, 70_000):
        out[f"binary {size}"] = {"binary": size}
    for size in (0, 1, 7, 8, 300):
        out[f"list {size}"] = items(*({"int": number} for number in range(size)))
    out["list of everything"] = items(
        {"null": 0}, {"bool": True}, {"int": 5}, {"long": "5"}, text("x"), {"binary": 3}, items()
    )
    out["map empty"] = entries()
    out["map in map"] = entries(a=entries(b=entries(c=items(items(text("deep"))))))
    out["put request"] = entries(
        topic=text("orders"),
        partition={"long": "3"},
        record_count={"long": "2"},
        crc={"long": "3735928559"},
        producer_id={"long": "9007199254740993"},
        sequence={"long": "17"},
    )
    out["get request"] = entries(
        topic=text("orders"), offset={"long": "5000000000"}, tags=items(text("a"), text("ü"))
    )
    return out


if __name__ == "__main__":
    target = Path(__file__).with_name("cases.json")
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in cases().items()]
    target.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
