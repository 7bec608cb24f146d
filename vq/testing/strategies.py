"""Strategies of hypothesis for what vq carries. Needs ``hypothesis``.

What they draw is valid: brokers take it. Bounds are those of ``vq.limits``, or smaller ones that
find the same faults sooner.
"""

from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from vq import limits
from vq.model import Key, Message
from vq.reserved import is_reserved

_NAME_LETTERS: Final = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
#: No surrogates: they have no UTF-8. No NUL, which many databases refuse.
_TEXT: Final = st.characters(exclude_categories=["Cs"], exclude_characters="\0")


def names() -> SearchStrategy[str]:
    """Return names of topics, groups and clients."""
    return st.text(_NAME_LETTERS, min_size=1, max_size=40).filter(
        lambda name: limits.is_valid_name(name) and not is_reserved(name)
    )


def contents(max_size: int = 1_000) -> SearchStrategy[bytes]:
    """Return contents of messages, up to so many bytes."""
    return st.binary(max_size=max_size)


def tags() -> SearchStrategy[str]:
    """Return tags, by which brokers filter."""
    return st.text(_NAME_LETTERS, min_size=1, max_size=20)


def keys() -> SearchStrategy[Key]:
    """Return keys: texts, bytes and integers."""
    return st.one_of(
        st.text(_TEXT, min_size=1, max_size=30),
        st.binary(min_size=1, max_size=30),
        st.integers(-(2**63), 2**63 - 1),
    )


def headers() -> SearchStrategy[dict[str, str]]:
    """Return headers of an application; names that begin with ``_vq.`` are vq's own."""
    return st.dictionaries(
        st.text(_NAME_LETTERS, min_size=1, max_size=20).filter(lambda name: not is_reserved(name)),
        st.text(_TEXT, max_size=50),
        max_size=4,
    )


def messages(topic: str | SearchStrategy[str]) -> SearchStrategy[Message]:
    """Return messages to a topic, with and without key, tag and headers."""

    def message(topic: str, content: bytes, **fields: Any) -> Message:
        return Message(topic, content, **fields)  # no other field: builds would draw those, too

    return st.builds(
        message,
        st.just(topic) if isinstance(topic, str) else topic,
        contents(),
        tag=st.none() | tags(),
        key=st.none() | keys(),
        headers=st.just({}) | headers(),
    )
