"""Patterns of topic names, as in ``subscribe("orders.*")``: their syntax, and what they match.

    *   any characters, also none, and also dots
    ?   one character

All other characters stand for themselves. No name of a topic has a ``*`` or a ``?``, so a text is a
name or a pattern, never both. A pattern never matches a topic that is vq's own. Pure.
"""

import fnmatch
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from vq.errors import InvalidArgument
from vq.limits import NAME_CHARS_MAX
from vq.reserved import is_reserved
from vq.shown import shown

_WILD: Final = "*?"
#: Every other character of a pattern may be in a name.
_CHARS: Final = re.compile(r"[A-Za-z0-9._*?-]+")


def is_pattern(text: str) -> bool:
    """Return whether a text is meant as a pattern: no name of a topic has one of its marks."""
    return any(mark in text for mark in _WILD)


def check_pattern(text: str) -> str:
    """Return a pattern that may match something.

    Raises:
        InvalidArgument: It has a character that no name has, is too long, or asks for what is
            reserved.
    """
    if not _CHARS.fullmatch(text) or len(text) > NAME_CHARS_MAX:
        raise InvalidArgument(
            f"pattern {shown(text)} ({len(text)} characters) is not 1 to {NAME_CHARS_MAX} "
            "characters of A-Z a-z 0-9 . _ - * ?; '*' stands for any characters, '?' for one. It "
            "is no regular expression: subscribe several times for several names"
        )
    if is_reserved(text):
        raise InvalidArgument(
            f"pattern {shown(text)} asks for topics that are vq's own, and no pattern matches "
            "those; subscribe to such a topic by its name"
        )
    return text


def matches(pattern: str, topic: str) -> bool:
    """Return whether a pattern takes a topic of this name."""
    return not is_reserved(topic) and _compiled(pattern).match(topic) is not None


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(pattern))  # it never goes back over what '*' took


def matching(patterns: Iterable[str], topic: str) -> str | None:
    """Return the pattern that takes a topic; None: none does."""
    return next((each for each in patterns if matches(each, topic)), None)


def overlap(first: str, second: str) -> bool:
    """Return whether there may be a name that two names or patterns both take."""
    seen = {(0, 0)}  # how much of both can stand for the same beginning of a name
    waiting = [(0, 0)]
    for left, right in waiting:  # it grows
        ours, theirs = first[left : left + 1], second[right : right + 1]
        steps = []
        if ours == "*":
            steps.append((left + 1, right))
        if theirs == "*":
            steps.append((left, right + 1))
        if ours and theirs and (ours == theirs or ours in _WILD or theirs in _WILD):
            steps.append((left + (ours != "*"), right + (theirs != "*")))
        for each in steps:
            if each not in seen:
                seen.add(each)
                waiting.append(each)
    return (len(first), len(second)) in seen
