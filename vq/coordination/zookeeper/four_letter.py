"""ZooKeeper's four-letter words: a server's status without a session. Blocking."""

import contextlib
import socket
import ssl
from typing import Final

#: In each answer of ZooKeeper: its version, that it does not serve yet, or that the word is off.
_SIGNS: Final = ("zookeeper", "whitelist")


def four_letter_word(
    host: str,
    port: int,
    word: str,
    *,
    timeout_s: float = 1.0,
    context: ssl.SSLContext | None = None,
) -> str:
    """Send a ZooKeeper command such as ``srvr``; return the answer, "" if there is none.

    ``context`` None: without TLS.
    """
    try:
        with contextlib.ExitStack() as held:
            connection = held.enter_context(socket.create_connection((host, port), timeout_s))
            if context is not None:
                secure = context.wrap_socket(connection, server_hostname=host)
                connection = held.enter_context(secure)
            connection.sendall(word.encode())
            chunks = []
            while chunk := connection.recv(8192):
                chunks.append(chunk)
            return b"".join(chunks).decode(errors="replace")
    except (OSError, UnicodeError):  # UnicodeError: the name is not valid for a host
        return ""


def is_of_zookeeper(answer: str) -> bool:
    """Return whether this can be ZooKeeper's answer to a four-letter word."""
    return any(sign in answer.lower() for sign in _SIGNS)
