"""Generate the protobuf modules next to their `.proto` files, or check that they are fresh.

    python tools/proto.py            write them
    python tools/proto.py --check    exit 1 when one differs from what the compiler makes now

The generated files are committed, so that an installation needs no compiler.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent


def generate(source: Path, target: Path) -> None:
    """Compile one `.proto` file below `target`, as `*_pb2.py` and `*_pb2.pyi` in its own path."""
    code = protoc.main(
        [
            "protoc",
            f"--proto_path={ROOT}",
            f"--python_out={target}",
            f"--pyi_out={target}",
            # The path, not the name alone: it becomes the file's name in the descriptor pool, which
            # a user's process shares with every other package that has a `wire.proto`.
            str(source.relative_to(ROOT)),
        ]
    )
    if code != 0:
        sys.exit(f"protoc failed on {source.relative_to(ROOT)} with code {code}")


def stale_files(source: Path) -> list[Path]:
    """Return the committed files of `source` that are missing or differ from a fresh run."""
    with tempfile.TemporaryDirectory() as directory:
        generate(source, Path(directory))
        fresh_files = sorted((Path(directory) / source.parent.relative_to(ROOT)).iterdir())
        return [
            committed
            for fresh in fresh_files
            if not (committed := source.parent / fresh.name).exists()
            or committed.read_bytes() != fresh.read_bytes()
        ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only compare")
    check = parser.parse_args().check
    sources = sorted((ROOT / "vq").rglob("*.proto"))
    if not check:
        for source in sources:
            generate(source, ROOT)
        return 0
    stale = [path for source in sources for path in stale_files(source)]
    for path in stale:
        print(f"{path.relative_to(ROOT)} is not what its .proto file gives: run `make proto`")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
