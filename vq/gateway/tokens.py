"""Who may do what: the file of tokens, and what a token may do.

::

    version = 1

    [[token]]
    name = "shop"                     # shown in logs, and the owner of its consumers
    sha256 = "9f86d081884c7d65…"      # of the token; the token itself is nowhere
    write = ["orders.*"]              # topics, as in vq.topic_pattern
    read = ["orders.*", "prices"]
    groups = ["shop-*"]               # groups that it may join

Nobody but the owner of the file may read or write it. It is read again when it has changed; one
that cannot be read then leaves the tokens as they were.
"""

import fnmatch
import hmac
import os
import re
import secrets
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from vq import limits
from vq.errors import InvalidArgument
from vq.gateway.bearer import TOKEN_CHARS_MAX, digest_of, sent_token
from vq.gateway.problems import RightRequired, TokenRequired
from vq.log_lines import get_logger
from vq.model import check_name
from vq.reserved import is_reserved
from vq.security.rules import Resource, Right
from vq.security.secret_files import read_secret_file
from vq.shown import shown
from vq.topic_pattern import check_pattern, is_pattern

logger = get_logger(__name__)

VERSION: Final = 1
TOKENS_MAX: Final = 1_000
PATTERNS_MAX: Final = 100
_FILE_BYTES_MAX: Final = limits.MIB
#: How often the file is looked at, at most.
LOOK_S: Final = 1.0
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_KEYS: Final = ("name", "sha256", "write", "read", "groups")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request, and what that token may do; None: everything.

    Attributes:
        name: Of the token; "" where there are none.
        write, read: Names and patterns of topics.
        groups: Names and patterns of groups.
    """

    name: str = ""
    write: tuple[str, ...] | None = None
    read: tuple[str, ...] | None = None
    groups: tuple[str, ...] | None = None

    def may(self, right: Right, resource: Resource, name: str) -> bool:
        """Whether it has a right on a topic or group, or on all that a pattern of topics takes."""
        return any(_covers(each, name) for each in self._patterns(right, resource) or ()) or (
            self._patterns(right, resource) is None
        )

    def check(self, right: Right, resource: Resource, name: str) -> None:
        """Return if it has a right.

        Raises:
            RightRequired: It does not.
        """
        if not self.may(right, resource, name):
            verb = "join" if resource is Resource.GROUP else str(right)
            of = shown(name, limits.NAME_CHARS_MAX)
            raise RightRequired(
                f"token {self.name!r} may not {verb} {resource} {of}",
                details={"right": verb, "resource": str(resource), "name": name},
            )

    def sees(self, topic: str) -> bool:
        """Whether it may know that a topic exists."""
        return any(self.may(each, Resource.TOPIC, topic) for each in (Right.READ, Right.WRITE))

    def _patterns(self, right: Right, resource: Resource) -> tuple[str, ...] | None:
        if resource is Resource.GROUP:
            return self.groups
        return self.write if right is Right.WRITE else self.read


#: Of a gateway without tokens.
ANYBODY: Final = Caller()


def _covers(pattern: str, name: str) -> bool:
    """Whether a pattern takes a name, or everything that another pattern takes.

    A ``*`` of the pattern takes whatever is there, marks of a pattern included; a ``?`` takes one
    character and no ``*``. A pattern never takes what is vq's own.
    """
    if pattern == name:
        return True
    return is_pattern(pattern) and not is_reserved(name) and bool(_compiled(pattern).match(name))


@lru_cache(maxsize=4_096)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(pattern.replace("?", "[!*]")))


# The file ----------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Token:
    """One entry of the file."""

    digest: bytes
    caller: Caller


def parse(text: str) -> list[Token]:
    """Return the entries of a file.

    Raises:
        InvalidArgument: Something in it is not what it must be; the text says what.
    """
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidArgument(f"it is not TOML: {error}") from error
    version = table.pop("version", None)
    if version != VERSION or isinstance(version, bool):
        raise InvalidArgument(
            f"version = {shown(version)}; this vq reads version {VERSION}: begin the file with "
            f"`version = {VERSION}`"
        )
    entries = table.pop("token", [])
    if table:
        raise InvalidArgument(
            f"unknown keys {shown(sorted(table))}; known are version and [[token]]"
        )
    if not isinstance(entries, list) or len(entries) > TOKENS_MAX:
        raise InvalidArgument(f"token must be a list of at most {TOKENS_MAX} tables [[token]]")
    tokens = [_entry(place, each) for place, each in enumerate(entries, 1)]
    for what in (
        [each.caller.name for each in tokens],
        [each.digest.hex() for each in tokens],
    ):
        doubled = sorted({each for each in what if what.count(each) > 1})
        if doubled:
            raise InvalidArgument(f"{doubled[0]} is there twice; each token has its own")
    return tokens


def _entry(place: int, entry: object) -> Token:
    where = f"[[token]] {place}"
    if not isinstance(entry, dict):
        raise InvalidArgument(f"{where} is {shown(entry)}, not a table")
    strange = sorted(entry.keys() - set(_KEYS))
    if strange:
        raise InvalidArgument(
            f"{where} has the unknown key {shown(strange[0])}; known are {', '.join(_KEYS)}"
        )
    name = check_name("token", entry.get("name", ""))
    digest = entry.get("sha256")
    if not isinstance(digest, str) or not _SHA256.fullmatch(digest):
        raise InvalidArgument(
            f"{where} ({name}): sha256 = {shown(digest)} is not 64 hexadecimal digits in lower "
            "case; `vq gateway token` makes an entry"
        )
    caller = Caller(
        name, *(_patterns(f"{where} ({name})", entry, key) for key in ("write", "read", "groups"))
    )
    return Token(bytes.fromhex(digest), caller)


def _patterns(where: str, entry: Mapping[str, Any], key: str) -> tuple[str, ...]:
    given = entry.get(key, [])
    if not isinstance(given, list) or len(given) > PATTERNS_MAX:
        raise InvalidArgument(
            f"{where}: {key} = {shown(given)} is not a list of at most {PATTERNS_MAX} names and "
            "patterns"
        )
    return tuple(check_names(f"{where}: {key}", given))


def check_names(what: str, given: Iterable[object]) -> list[str]:
    """Return names and patterns that somebody gave.

    Raises:
        InvalidArgument: One is neither.
    """
    found = []
    for each in given:
        try:
            if not isinstance(each, str):
                raise InvalidArgument(f"{shown(each)} is not text")
            found.append(check_pattern(each) if is_pattern(each) else check_name("name", each))
        except InvalidArgument as error:
            raise InvalidArgument(f"{what}: {error}") from error
    return found


def _read(path: Path) -> str:
    """Return the text of the file; see ``read_secret_file`` for errors."""
    return read_secret_file(path, _FILE_BYTES_MAX)


class TokenFile:
    """The tokens of a file, read again when it has changed. Loop-bound.

    Args:
        path: The file.
        now: The monotonic clock.

    Raises:
        InvalidArgument: It cannot be used; the text says why.
    """

    def __init__(self, path: Path, now: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._now = now
        self._looked_at = now()
        self._seen = self._look()
        try:
            self._tokens = parse(_read(path))
        except InvalidArgument as error:
            raise InvalidArgument(f"file of tokens {str(path)!r}: {error}") from error

    def caller_of(self, header: str | None) -> Caller:
        """Return whose token a header ``Authorization`` has.

        Raises:
            TokenRequired: There is none, or it is no token of the file.
        """
        self._follow()
        token = sent_token(header)
        if not token:
            raise TokenRequired(
                "the request has no header `Authorization: Bearer TOKEN` with a token of at most "
                f"{TOKEN_CHARS_MAX} characters"
            )
        digest = digest_of(token)
        found: Caller | None = None
        for each in self._tokens:  # all of them: how long it takes tells nothing
            if hmac.compare_digest(each.digest, digest):
                found = each.caller
        if found is None:
            raise TokenRequired("the gateway does not know this token")
        return found

    def _look(self) -> tuple[int, ...]:
        try:
            found = self._path.stat()
        except OSError:
            return ()
        return (
            found.st_mtime_ns,
            found.st_ctime_ns,
            found.st_size,
            found.st_ino,
            found.st_mode,
        )

    def _follow(self) -> None:
        """Read the file again if it has changed."""
        now = self._now()
        if now - self._looked_at < LOOK_S:
            return
        self._looked_at = now
        seen = self._look()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            tokens = parse(_read(self._path))
        except InvalidArgument as error:
            logger.error(
                "file of tokens cannot be used, the tokens stay as they were",
                path=self._path,
                error=error,
            )
            return
        self._tokens = tokens
        logger.info("file of tokens was read again", path=self._path, tokens=len(tokens))


# Making one --------------------------------------------------------------------------------------
def entry_of(
    name: str, token: str, *, write: Iterable[str], read: Iterable[str], groups: Iterable[str]
) -> str:
    """Return the entry of a token in the file.

    Raises:
        InvalidArgument: A name or a pattern is none.
    """
    lines = [f'name = "{check_name("token", name)}"', f'sha256 = "{digest_of(token).hex()}"']
    for key, given in (("write", write), ("read", read), ("groups", groups)):
        names = ", ".join(f'"{each}"' for each in check_names(key, given))
        lines.append(f"{key} = [{names}]")
    return "\n".join(["[[token]]", *lines, ""])


def add_entry(path: Path, entry: str) -> None:
    """Write an entry behind the others of a file, which is made if there is none.

    The file is replaced as a whole: a gateway reads the old one or the new one.

    Raises:
        InvalidArgument: The file cannot be used, or has a token of this name.
        OSError: It cannot be written.
    """
    text = f"version = {VERSION}\n"
    try:
        if path.exists():
            text = _read(path)
        text = f"{text.rstrip()}\n\n{entry}"
        parse(text)
    except InvalidArgument as error:
        raise InvalidArgument(f"file of tokens {str(path)!r}: {error}") from error
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:  # noqa: PTH123 - with this mode from the first moment
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
