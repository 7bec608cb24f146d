"""ZooKeeper's four-letter words: a server's status without a session. Blocking."""

import socket
from typing import Final

#: In each answer of ZooKeeper: its version, that it does not serve yet, or that the word is off.
_SIGNS: Final = ("zookeeper", "whitelist")


def four_letter_word(host: str, port: int, word: str, *, timeout_s: float = 1.0) -> str:
    """Send a ZooKeeper command such as ``srvr``; return the answer, "" if there is none."""
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as connection:
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
