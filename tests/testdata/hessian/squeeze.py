"""Shortens vectors for keeping: runs of a repeated piece become ``hex*count``, lines stay readable.

python squeeze.py < node.txt > hessian.js-2.11.0.txt
"""

import re
import sys

RUN = re.compile(rb"(.{1,6}?|.{251})\1{3,}", re.DOTALL)


def squeeze(data: bytes) -> str:
    """Return ``data`` as words of hex, a run of at least 12 bytes as ``hex*count``."""
    words = []
    position = 0
    for run in RUN.finditer(data):
        if run.end() - run.start() < 12:
            continue
        if run.start() > position:
            words.append(data[position : run.start()].hex())
        piece = run.group(1)
        words.append(f"{piece.hex()}*{(run.end() - run.start()) // len(piece)}")
        position = run.end()
    if position < len(data):
        words.append(data[position:].hex())
    return " ".join(words)


if __name__ == "__main__":
    for line in sys.stdin:
        name, vector = line.rstrip("\n").split("\t")
        print(name, squeeze(bytes.fromhex(vector)), sep="\t")
