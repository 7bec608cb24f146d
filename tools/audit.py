"""Write what vq installs with all its extras (an SBOM), and look for known faults in it.

    python tools/audit.py [--out DIR] [--offline]

- a fresh environment gets vq with every extra, within ``constraints.txt``;
- ``DIR/vq-VERSION.cdx.json`` lists its packages, their versions and licences, in CycloneDX 1.6;
- pip-audit looks each of them up in the advisory database of PyPI. It needs the network, so this
  is no part of the tests; ``--offline`` leaves it out.

The command ends with code 1 if a package has a known fault, or could not be looked up.
"""

import argparse
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from vq.version import __version__

ROOT = Path(__file__).resolve().parent.parent


def extras() -> list[str]:
    """Return the names of all extras of vq."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        return sorted(tomllib.load(file)["project"]["optional-dependencies"])


def install(environment: Path) -> Path:
    """Install vq with all extras into a new environment, and return its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    python = environment / "bin" / "python"
    pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    wanted = f"{ROOT}[{','.join(extras())}]"
    constraints = str(ROOT / "constraints.txt")
    subprocess.run([*pip, "install", "--constraint", constraints, wanted], check=True)
    return python


def packages(python: Path) -> list[str]:
    """Return what an environment has, as ``name==version``, but vq, pip and setuptools."""
    command = [str(python), "-m", "pip", "freeze", "--exclude", "vq"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


def write_sbom(python: Path, out: Path) -> Path:
    """Write the list of what is installed, checked by CycloneDX's schema; return its file."""
    out.mkdir(parents=True, exist_ok=True)
    sbom = out / f"vq-{__version__}.cdx.json"
    command = [
        *(sys.executable, "-m", "cyclonedx_py", "environment", str(python)),
        *("--pyproject", str(ROOT / "pyproject.toml"), "--spec-version", "1.6"),
        *("--output-reproducible", "--validate", "--output-file", str(sbom)),
    ]
    subprocess.run(command, check=True)
    return sbom


def look_up(wanted: list[str], scratch: Path) -> int:
    """Look for known faults; return the code of pip-audit.

    It is 0 if there are none, and 1 also if a package could not be looked up.
    """
    listed = scratch / "packages.txt"
    listed.write_text("\n".join(wanted) + "\n")
    command = [
        *(sys.executable, "-m", "pip_audit", "--strict", "--progress-spinner", "off"),
        *("--requirement", str(listed), "--no-deps", "--disable-pip"),
    ]
    return subprocess.run(command, check=False).returncode


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where the SBOM goes")
    parser.add_argument("--offline", action="store_true", help="look nothing up")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="vq-audit-") as scratch:
        python = install(Path(scratch) / "environment")
        print(f"wrote {write_sbom(python, arguments.out)}")
        return 0 if arguments.offline else look_up(packages(python), Path(scratch))


if __name__ == "__main__":
    sys.exit(main())
