"""Real SQL servers for tests: PostgreSQL and MariaDB from the machine's packages.

Each test process starts its own when the first test asks: own data, a Unix socket and no port.
A server refuses to run as root, so root starts it as the user that its package has made.
"""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.zookeeper import unavailable

from vq.testing.waiting import PROCESSES_WAIT_S, block_until

_STOP_S = 20.0


def program(name: str, package: str) -> str:
    """Return the path of a server's program; skip without it, fail where ``.ci/run`` runs."""
    found = shutil.which(name)
    places = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)
    if places:  # first: Debian has no link to these, and another PATH may have a wrapper
        return str(places[0])
    if found is None:
        reason = f"{name} is missing (Debian: apt-get install {package})"
        if os.environ.get("NEEDS_DATABASES"):
            pytest.fail(reason)
        unavailable(reason)
    return str(found)


@contextmanager
def _place(user: str) -> Iterator[tuple[Path, list[str]]]:
    """Yield a directory that a server may use, and what starts a program that may use it."""
    with tempfile.TemporaryDirectory(prefix="vq-sql-", ignore_cleanup_errors=True) as made:
        prefix: list[str] = []
        if os.geteuid() == 0:
            try:
                account = pwd.getpwnam(user)
            except KeyError:
                pytest.skip(f"root needs the user {user!r} to start the server; there is none")
            os.chown(made, account.pw_uid, account.pw_gid)
            ids = [f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]
            prefix = ["setpriv", *ids]
        yield Path(made), prefix


def _run(command: Sequence[str], place: Path) -> None:
    done = subprocess.run(
        command, cwd=place, capture_output=True, text=True, timeout=PROCESSES_WAIT_S, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"


@contextmanager
def _running(command: Sequence[str], place: Path, answers: Callable[[], bool]) -> Iterator[None]:
    with (place / "server.log").open("wb") as log:
        server = subprocess.Popen(
            command, cwd=place, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        block_until(lambda: server.poll() is not None or answers(), "the server answers")
        assert server.poll() is None, (place / "server.log").read_text(errors="replace")[-4000:]
        yield
    finally:
        server.terminate()
        try:
            server.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _answers(url: str) -> Callable[[], bool]:
    engine = sa.create_engine(url, poolclass=sa.NullPool)

    def ask() -> bool:
        try:
            with engine.connect():
                return True
        except sa.exc.OperationalError:
            return False

    return ask


@contextmanager
def postgresql(prepares: int = 20) -> Iterator[str]:
    """Run a PostgreSQL server; yield the URL of its database.

    ``prepares``: so many prepared transactions it takes; itself it would take none.
    """
    server, initdb = (program(name, "postgresql") for name in ("postgres", "initdb"))
    with _place("postgres") as (place, prefix):
        data = place / "data"
        _run(
            [*prefix, initdb, "-D", str(data), "-U", "vq", "-A", "trust", "-N", "-E", "UTF8"], place
        )
        url = f"postgresql+psycopg://vq@/postgres?host={place}"
        settings = (
            *("listen_addresses=", "fsync=off", f"unix_socket_directories={place}"),
            f"max_prepared_transactions={prepares}",
        )
        options = [word for each in settings for word in ("-c", each)]
        with _running([*prefix, server, "-D", str(data), *options], place, _answers(url)):
            yield url


@contextmanager
def mariadb() -> Iterator[str]:
    """Run a MariaDB server; yield the URL of its database."""
    server = program("mariadbd", "mariadb-server")
    install = program("mariadb-install-db", "mariadb-server")
    with _place("mysql") as (place, prefix):
        data, socket = place / "data", place / "socket"
        _run(
            [
                *(*prefix, install, "--no-defaults", f"--datadir={data}", "--skip-test-db"),
                "--auth-root-authentication-method=normal",
            ],
            place,
        )
        options = [
            *("--no-defaults", f"--datadir={data}", f"--socket={socket}", "--skip-networking"),
            *(
                f"--pid-file={place / 'pid'}",
                "--innodb-buffer-pool-size=16M",
                "--skip-grant-tables",
            ),
        ]
        root = f"mariadb+pymysql://root@localhost/?unix_socket={socket}"
        asks = _answers(root)  # only once it listens: a failed try leaves a socket behind
        with _running([*prefix, server, *options], place, lambda: socket.exists() and asks()):
            engine = sa.create_engine(root, poolclass=sa.NullPool)
            with engine.connect() as connection:
                connection.execute(sa.text("CREATE DATABASE vq"))
            yield f"mariadb+pymysql://root@localhost/vq?unix_socket={socket}"
