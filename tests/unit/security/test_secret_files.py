"""Files of secrets that others may use are refused, of every kind, with what to do."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme
from support.cases import case
from support.certificates import write_tls

from vq.cli.cluster.zk import _identity_in
from vq.errors import InvalidArgument
from vq.gateway.tokens import TokenFile
from vq.security.secret_files import read_secret, read_secret_file
from vq.security.tls import TlsContexts

#: What a file with this text has, and what reads it.
READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "password": ("correct horse\n", lambda path: read_secret(str(path))),
    "tokens": ("version = 1\n", TokenFile),
    "identity": ("name:0123456789abcdef\n", _identity_in),
}


def secret_in(path: Path, text: str, mode: int = 0o600) -> Path:
    path.touch(mode=0o600)
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("kind", [*READERS, "key"])
def test_a_file_that_others_may_use_is_refused(tmp_path: Path, kind: str) -> None:
    """By one rule; the text says which mode it has, and shows nothing of what is in it."""
    if kind == "key":
        tls = write_tls(tmp_path / "tls", trustme.CA())
        path = Path(str(tls.key))
        text, read = path.read_text(), lambda _path: TlsContexts(tls, serves=True)
    else:
        text, read = READERS[kind]
        path = secret_in(tmp_path / kind, text)
    read(path)
    for mode in (0o604, 0o644, 0o620, 0o602, 0o777):
        path.chmod(mode)
        with case(oct(mode)), pytest.raises(InvalidArgument, match="chmod 600") as refused:
            read(path)
        assert f"mode {mode:04o}" in str(refused.value)
        assert str(path) in str(refused.value)
        assert text.strip() not in str(refused.value)
    by_root = os.geteuid() == 0
    path.chmod(0o640)
    if by_root:
        read(path)  # as a secret comes into a container
    else:
        with pytest.raises(InvalidArgument, match="chmod 600"):
            read(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_of_somebody_else_is_refused(tmp_path: Path) -> None:
    """Who owns it may change it."""
    path = secret_in(tmp_path / "secret", "text")
    os.chown(path, 12_345, -1)
    with pytest.raises(InvalidArgument, match="belongs to user 12345"):
        read_secret_file(path, 100)


def test_what_cannot_be_read_is_not_shown(tmp_path: Path) -> None:
    for data, said in ((b"x" * 101, "more than 100 bytes"), (b"hidden\xff", "not UTF-8")):
        path = secret_in(tmp_path / said, "")
        path.write_bytes(data)
        with case(said), pytest.raises(InvalidArgument, match=said) as refused:
            read_secret_file(path, 100)
        assert "hidden" not in str(refused.value)
    with pytest.raises(InvalidArgument, match="cannot be read"):
        read_secret_file(tmp_path / "none", 100)
    with pytest.raises(InvalidArgument, match=r"regular|directory"):
        read_secret_file(tmp_path, 100)


def test_a_password_may_come_from_a_pipe(tmp_path: Path) -> None:
    """``--password-file <(pass show vq)``; tokens may not, they are read again."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    writer = threading.Thread(target=lambda: pipe.write_text("from a pipe\n"))
    writer.start()
    assert read_secret(str(pipe)) == "from a pipe"
    writer.join()
