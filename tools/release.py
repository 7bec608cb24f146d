"""Build all that a release consists of into dist/, and try each wheel; nothing is uploaded.

    python tools/release.py [--out DIR] [--unreleased] [--only 3.12 ...] [--headers 3.14=DIR ...]

- the sdist, from a checkout without changes;
- from the unpacked sdist, a wheel with compiled loops for each Python and machine, and a pure one.
  zig's C compiler links them against an old glibc, also for machines of another kind;
- ``RELEASE-NOTES.md``, the section of CHANGELOG.md for this version, and ``SHA256SUMS``.

Each wheel that this machine can run is installed into a fresh environment without a compiler, and
that environment's ``vq`` starts a broker, sends messages and receives them. The last lines say
which wheels were tried. A wheel for a Python that is not here needs its headers: for example those
of Debian's package, unpacked by ``dpkg-deb -x libpython3.14-dev_*.deb DIR``.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from build_loops import SOURCES, NotCompiled, compile_with, target_of

from vq.devtools.zookeeper import find_jars, find_java, free_port
from vq.version import __version__

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64")
#: The oldest C library that a wheel runs with: that of every Linux that has these Pythons.
GLIBC = (2, 17)
STARTS_WITHIN_S = 60.0
#: The interpreter's answer to where it is and what it compiles with.
_ASK = """
import json, platform, sysconfig
print(json.dumps([".".join(platform.python_version_tuple()[:2]), platform.machine(),
                  sysconfig.get_path("include"), platform.python_implementation()]))
"""
#: Prints for each compiled loop whether it is installed.
COMPILED = f"""
import importlib.util
print(*[importlib.util.find_spec(name) is not None
        for name in {[".".join(source.with_suffix("").parts) for source in SOURCES]}])
"""


class ReleaseFailed(Exception):
    """The release cannot be built; the message says why, and what to do."""


@dataclass(frozen=True)
class Headers:
    """What a wheel is compiled with: a version's headers, and its interpreter where it is here."""

    python: str
    include: Path
    interpreter: Path | None = None


@dataclass(frozen=True)
class Target:
    """A Python version and a kind of machine."""

    python: str
    machine: str

    @property
    def tag(self) -> str:
        """The wheel's tag (PEP 425, PEP 600)."""
        cp = f"cp{self.python.replace('.', '')}"
        platforms = [f"manylinux_{GLIBC[0]}_{GLIBC[1]}", "manylinux2014"]  # two names of the same
        return f"{cp}-{cp}-{'.'.join(f'{name}_{self.machine}' for name in platforms)}"

    @property
    def suffix(self) -> str:
        """How the file of an extension module ends."""
        return f".cpython-{self.python.replace('.', '')}-{self.machine}-linux-gnu.so"

    @property
    def compiler(self) -> list[str]:
        """The command that compiles and links a module."""
        glibc = ".".join(map(str, GLIBC))
        zig = [sys.executable, "-m", "ziglang", "cc"]
        return [*zig, "-target", f"{self.machine}-linux-gnu.{glibc}", "-shared", "-s"]


# Decisions ------------------------------------------------------------------------------------
def notes_of(changelog: str, version: str) -> str:
    """Return the section of a version.

    Raises:
        ReleaseFailed: There is none, or changes are listed as unreleased above it.
    """
    sections = re.split(r"^## ", changelog, flags=re.MULTILINE)[1:]
    named = {section.split(maxsplit=1)[0]: section for section in sections}
    if version not in named:
        raise ReleaseFailed(
            f"CHANGELOG.md has no section '## {version} …': give the section 'Unreleased' the "
            "version of vq/version.py and the date; or build a trial with --unreleased"
        )
    if "Unreleased" in named:
        raise ReleaseFailed(
            f"CHANGELOG.md lists changes as unreleased beside '## {version} …': raise the version "
            "in vq/version.py and name the section for it; or build a trial with --unreleased"
        )
    return f"## {named[version].rstrip()}\n"


def complete(found: Iterable[Headers], pythons: Iterable[str]) -> dict[str, Headers]:
    """Return the headers to take for each Python; an interpreter goes before headers alone.

    Raises:
        ReleaseFailed: Some have none.
    """
    chosen: dict[str, Headers] = {}
    for each in sorted(found, key=lambda headers: headers.interpreter is None):
        chosen.setdefault(each.python, each)
    missing = [python for python in pythons if python not in chosen]
    if missing:
        raise ReleaseFailed(
            f"no headers of Python {', '.join(missing)}: install it, or name a directory with its "
            f"Python.h: --headers {missing[0]}=DIR; or build fewer wheels: --only "
            + " ".join(python for python in pythons if python in chosen)
        )
    return {python: chosen[python] for python in pythons}


# Finding --------------------------------------------------------------------------------------
def interpreters(environ: Mapping[str, str]) -> list[Headers]:
    """Return the CPythons of this machine's kind that run and have headers."""
    home = Path(environ.get("PYENV_ROOT") or Path(environ.get("HOME", "/nonexistent"), ".pyenv"))
    places = [Path(place) for place in environ.get("PATH", "").split(os.pathsep) if place]
    candidates = [Path(getattr(sys, "_base_executable", sys.executable))]
    for python in PYTHONS:
        candidates += [place / f"python{python}" for place in places]
        candidates += sorted(home.glob(f"versions/{python}.*/bin/python{python}"), reverse=True)
    found = []
    for candidate in filter(lambda path: os.access(path, os.X_OK), candidates):
        asked = subprocess.run([candidate, "-c", _ASK], capture_output=True, check=False)
        if asked.returncode:
            continue  # a shim of pyenv exists for versions that are switched off
        python, machine, include, implementation = json.loads(asked.stdout)
        if implementation == "CPython" and machine == MACHINES[0] and has_headers(Path(include)):
            found.append(Headers(python, Path(include), candidate))
    return found


def has_headers(directory: Path) -> bool:
    """Whether extension modules can be compiled with this directory."""
    return (directory / "Python.h").is_file() and (directory / "pyconfig.h").is_file()


def named_headers(text: str) -> Headers:
    """Return what ``--headers 3.14=DIR`` names; Python.h may be anywhere below the directory."""
    python, _, directory = text.partition("=")
    if python not in PYTHONS or not directory:
        raise ReleaseFailed(f"--headers {text}: expected VERSION=DIR, VERSION of {PYTHONS}")
    for found in sorted(Path(directory).rglob("Python.h")):
        if found.parent.name == f"python{python}" or found.parent == Path(directory):
            return Headers(python, found.parent)
    raise ReleaseFailed(f"--headers {text}: no Python.h of Python {python} is below {directory}")


# Building -------------------------------------------------------------------------------------
def run(command: Sequence[str | Path], **options: object) -> str:
    """Run a command and return what it printed.

    Raises:
        ReleaseFailed: It failed; the message is the end of what it printed.
    """
    done = subprocess.run(  # type: ignore[call-overload]
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options
    )
    if done.returncode:
        shown = " ".join(map(str, command))
        raise ReleaseFailed(f"{shown} ended with {done.returncode}:\n{done.stdout[-3000:]}")
    return str(done.stdout)


def build(kind: str, source: Path, out: Path, environ: Mapping[str, str]) -> Path:
    """Build the sdist or a wheel of a source directory into ``out`` and return its path."""
    with tempfile.TemporaryDirectory(dir=out) as made:
        command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", made]
        run(command, cwd=source, env={**os.environ, **environ})
        [path] = Path(made).iterdir()
        return path.replace(out / path.name)


def build_wheel(target: Target, headers: Headers, source: Path, out: Path) -> Path:
    """Compile the loops for a target and build its wheel; its tag is checked by auditwheel."""
    with tempfile.TemporaryDirectory(prefix="loops-", dir=out) as place:
        for each in SOURCES:
            module = Path(place, target_of(each, target.suffix).name)
            try:
                compile_with(target.compiler, source / each, module, headers.include)
            except NotCompiled as error:
                raise ReleaseFailed(f"for {target.tag}: {error}") from error
        wheel = build("wheel", source, out, {"VQ_LOOPS": place, "VQ_WHEEL_TAG": target.tag})
    said = run([sys.executable, "-m", "auditwheel", "show", wheel])
    tag = f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{target.machine}"
    consistent = re.search(r'platform\s+tag:\s+"manylinux_(\d+)_(\d+)_(\w+)"', said)
    if not consistent or (int(consistent[1]), int(consistent[2])) > GLIBC:
        raise ReleaseFailed(f"{wheel.name} does not keep what {tag} promises:\n{said}")
    return wheel


# Trying ---------------------------------------------------------------------------------------
def install(wheel: Path, interpreter: Path, directory: Path) -> dict[str, str]:
    """Install a wheel into a fresh environment and return the process environment to use it.

    No compiler is in reach, and no other package of this machine.
    """
    run([interpreter, "-m", "venv", directory])
    scripts = directory / "bin"
    kept = {name: value for name, value in os.environ.items() if _is_for_pip(name)}
    environ = {**kept, "PATH": str(scripts), "HOME": str(directory), "TMPDIR": str(directory)}
    pip = [scripts / "python", "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    run([*pip, "--only-binary", ":all:", wheel], env=environ)
    return environ


def _is_for_pip(name: str) -> bool:
    return name.startswith(("PIP_", "SSL_")) or name.lower().endswith("_proxy")


def try_wheel(wheel: Path, interpreter: Path, *, compiled: bool, scratch: Path) -> str:
    """Use a wheel as a new user does, and say what was seen.

    Raises:
        ReleaseFailed: Something is not as it must be.
    """
    with tempfile.TemporaryDirectory(prefix="try-", dir=scratch) as place:
        directory = Path(place, "venv")
        environ = install(wheel, interpreter, directory)
        python, vq = directory / "bin" / "python", directory / "bin" / "vq"
        loops = run([python, "-c", COMPILED], env=environ, cwd=place).split()
        if loops != [str(compiled)] * len(SOURCES):
            raise ReleaseFailed(f"{wheel.name}: compiled loops: {loops}, expected all {compiled}")
        if __version__ not in run([vq, "--version"], env=environ, cwd=place):
            raise ReleaseFailed(f"{wheel.name}: `vq --version` does not say {__version__}")
        return send_and_receive(vq, environ, Path(place))


def send_and_receive(vq: Path, environ: Mapping[str, str], place: Path) -> str:
    """Start a broker with ZooKeeper, send messages and receive them, all by the ``vq`` command."""
    first, port = free_port(), free_port()
    java = find_java()
    environ = {
        **environ,
        "VQ_ZOOKEEPER_JARS": str(find_jars()[0].parent),
        "JAVA_HOME": str(java.parent.parent),
        "VQ_ZOOKEEPER": f"127.0.0.1:{port}",
    }
    log = place / "standalone.log"
    ports = ["--port", str(first), "--zookeeper-port", str(port)]
    with log.open("wb") as out:
        cluster = subprocess.Popen(
            [vq, "standalone", "--data", place / "data", *ports],
            env=environ, stdout=out, stderr=subprocess.STDOUT, cwd=place,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + STARTS_WITHIN_S
        while "ctrl-C" not in log.read_text():
            if cluster.poll() is not None or time.monotonic() > deadline:
                raise ReleaseFailed(f"`vq standalone` did not start:\n{log.read_text()[-3000:]}")
            time.sleep(0.05)
        sent = "".join(f"line {number}\n" for number in range(1000))
        run([vq, "topic", "create", "tried", "--partitions", "1"], env=environ)
        run([vq, "produce", "tried"], env=environ, input=sent)
        received = run([vq, "consume", "tried", "--group", "g", "--max", "1000"], env=environ)
        if received != sent:
            raise ReleaseFailed(f"1,000 lines were sent, received was:\n{received[-1000:]}")
    finally:
        cluster.terminate()
        cluster.wait()
    return "1,000 messages sent and received"


# The command ----------------------------------------------------------------------------------
def source_of(sdist: Path, directory: Path) -> Path:
    """Unpack an sdist and return its directory."""
    with tarfile.open(sdist) as archive:
        # Python 3.11.2, Debian 12's, has no filters yet; the archive was made here.
        safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(directory, **safe)
    [source] = directory.iterdir()
    return source


def changed_files() -> str:
    """Return the files of the checkout that are not as committed, "" if there are none."""
    return run(["git", "status", "--porcelain"], cwd=ROOT)


def release(out: Path, found: Mapping[str, Headers], notes: str) -> None:
    """Build everything into ``out``, try it and say so."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    sdist = build("sdist", ROOT, out, {})
    print(f"{sdist.name}: built", flush=True)
    with tempfile.TemporaryDirectory(prefix="vq-release-") as place:
        scratch = Path(place)
        source = source_of(sdist, scratch / "source")
        pure = build("wheel", source, out, {"VQ_PURE": "1"})
        tried = [each for each in found.values() if each.interpreter is not None]
        for headers in tried:
            assert headers.interpreter is not None
            saw = try_wheel(pure, headers.interpreter, compiled=False, scratch=scratch)
            print(f"{pure.name}: tried with Python {headers.python}: {saw}", flush=True)
        for python, headers in found.items():
            for machine in MACHINES:
                wheel = build_wheel(Target(python, machine), headers, source, out)
                said = "built, not tried: this machine cannot run it"
                if machine == MACHINES[0] and headers.interpreter is not None:
                    saw = try_wheel(wheel, headers.interpreter, compiled=True, scratch=scratch)
                    said = f"built, tried: {saw}"
                print(f"{wheel.name}: {said}", flush=True)
    (out / "RELEASE-NOTES.md").write_text(notes)
    files = sorted(path for path in out.iterdir() if path.suffix in {".whl", ".gz"})
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (out / "SHA256SUMS").write_text("".join(sums))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 1 when something is missing or not as it must be."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="it is emptied first")
    parser.add_argument("--unreleased", action="store_true", help="a trial: no version is named")
    parser.add_argument("--only", nargs="+", choices=PYTHONS, default=PYTHONS, metavar="VERSION")
    parser.add_argument("--headers", action="append", default=[], metavar="VERSION=DIR")
    given = parser.parse_args(arguments)
    try:
        notes = "A trial, not released.\n"
        if not given.unreleased:
            notes = notes_of((ROOT / "CHANGELOG.md").read_text(), __version__)
            if changed := changed_files():
                raise ReleaseFailed(f"files are not as committed; commit them first:\n{changed}")
        headers = [named_headers(text) for text in given.headers] + interpreters(os.environ)
        release(given.out, complete(headers, given.only), notes)
    except ReleaseFailed as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
