"""Quotas say how much users, and clients of users, may use; accounts say when it was too much.

    user:alice bytes-in=10M messages-in=50000      this user, with all its clients
    user:* requests=1000                           each user that has no limit of its own
    anonymous connections=5                        all who have proved no name, as one user
    client:etl bytes-out=unlimited                 a client id, by itself for each user
    client:* time=5%                               each client of a user without its own

A limit of the name comes before that of ``*``, each limit by itself. What a user and its client may
use holds at once. A client id is what the client says, so only the limits of the user are safe from
somebody who changes it.

    limit        unit             counts
    bytes-in     bytes a second   bodies of requests, and headers above 4 KiB
    bytes-out    bytes a second   bodies of answers
    messages-in  a second         messages in batches that are sent, by the headers of these
    requests     a second         requests
    connections  a second         new connections
    time         part of the loop the time of the broker's loop that requests take
    metadata     an hour          partitions that a user makes or moves

Brokers count all but ``metadata``, which the process counts that makes or moves partitions.
For each limit there is a ``Pace``, with the time at which what was used is paid for. While that is
ahead, the next request waits; who has used nothing for ``BURST_S`` may use as much as in that time
at once. A request is charged when it begins, so the last one before a wait may be larger than what
was left: over long times the rate is exact, over a short one off by ``BURST_S`` and a request.
Pure.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from operator import itemgetter
from types import MappingProxyType
from typing import Final

from vq.errors import InvalidArgument
from vq.limits import GIB, KIB, MIB, THROTTLE_S_MAX, is_valid_name
from vq.pace import Pace
from vq.security.rules import ANONYMOUS
from vq.shown import shown

#: For so long nothing is read, at most, after requests that were refused. A client that waits as it
#: is told, ``THROTTLE_S_MAX``, is read before the time-out of its next request.
REFUSED_S_MAX: Final = 2 * THROTTLE_S_MAX
#: So much of a limit may be used at once by whoever has used nothing for that long.
BURST_S: Final = 0.2
#: What was used is paid for after this at the latest, however much it was: a limit so small that
#: one request takes longer is not exact.
DEBT_S_MAX: Final = 60.0
#: Most subjects with quotas in a cluster.
QUOTAS_MAX: Final = 10_000
#: Largest limit.
LIMIT_MAX: Final = 1e15
#: Smallest limit: less than one in a day.
LIMIT_MIN: Final = 1e-5
UNLIMITED: Final = "unlimited"
_USER: Final = "user:"
_CLIENT: Final = "client:"
_EACH: Final = "*"
_UNITS: Final[Mapping[str, int]] = {"K": KIB, "M": MIB, "G": GIB}


class QuotaLimit(StrEnum):
    """What a limit is about; see the module's text."""

    BYTES_IN = "bytes-in"
    BYTES_OUT = "bytes-out"
    MESSAGES_IN = "messages-in"
    REQUESTS = "requests"
    CONNECTIONS = "connections"
    TIME = "time"
    METADATA = "metadata"


#: Limits by what they are about; None: no limit, whatever the default is.
Limits = Mapping[QuotaLimit, float | None]
_NO_LIMITS: Final[Limits] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Quota:
    """The limits of one subject. ``str`` of it is the text that ``parse`` reads.

    Attributes:
        subject: ``user:NAME``, ``user:*``, ``anonymous``, ``client:ID`` or ``client:*``.
        limits: At least one, but for what is removed whole. None: no limit, whatever the default
            is.

    Raises:
        InvalidArgument: There is no such subject or limit.
    """

    subject: str
    limits: Mapping[QuotaLimit, float | None]

    def __post_init__(self) -> None:
        _check_quota_subject(self.subject)
        for name, value in self.limits.items():
            if _limit(name) is QuotaLimit.METADATA and not self.subject.startswith(_USER):
                raise InvalidArgument(
                    f"{name} is a limit of users, and {shown(self.subject)} is none: give user:NAME"
                    " or user:*"
                )
            if value is not None:
                _checked(_limit(name), value, f"{value}")

    @classmethod
    def parse(cls, text: str) -> "Quota":
        """Read ``SUBJECT LIMIT=VALUE LIMIT=VALUE``.

        A value is a number; of bytes with ``K``, ``M`` or ``G`` (KiB, MiB, GiB); of time a part of
        1, or ``5%``; or ``unlimited``.

        Raises:
            InvalidArgument: It is none.
        """
        subject, *words = text.split() or [""]
        if not words:
            _check_quota_subject(subject)
            raise InvalidArgument(
                f"the quota of {subject} has no limit: give one or several of {_names()}; for "
                "example: user:alice bytes-in=10M requests=1000"
            )
        limits: dict[QuotaLimit, float | None] = {}
        for word in words:
            name, equals, value = word.partition("=")
            if not equals:
                raise InvalidArgument(f"limit {shown(word)} is not LIMIT=VALUE; it is one of "
                                      f"{_names()}")  # fmt: skip
            limit = _limit(name)
            if limit in limits:
                raise InvalidArgument(f"limit {limit} is given twice for {subject}")
            limits[limit] = _value(limit, value)
        return cls(subject, limits)

    @classmethod
    def parse_removed(cls, text: str) -> "Quota":
        """Read ``SUBJECT``, or ``SUBJECT LIMIT LIMIT``: what to remove; no limit: all of them.

        Raises:
            InvalidArgument: It is none.
        """
        subject, *names = text.split() or [""]
        return cls(subject, {_limit(each): None for each in names})

    def __str__(self) -> str:
        limits = (f"{limit}={value_text(limit, self.limits[limit])}" for limit in self.ordered)
        return " ".join((self.subject, *limits))

    @property
    def ordered(self) -> list[QuotaLimit]:
        """What the limits are about, in the order of ``QuotaLimit``."""
        return [each for each in QuotaLimit if each in self.limits]


def value_text(limit: QuotaLimit, value: float | None) -> str:
    """Return the value of a limit as ``Quota.parse`` reads it."""
    if value is None:
        return UNLIMITED
    if limit is QuotaLimit.TIME:
        return f"{value * 100:.10g}%"
    if limit in _BYTES:
        for unit, size in sorted(_UNITS.items(), key=itemgetter(1), reverse=True):
            if value >= size and not value % size:
                return f"{value / size:.15g}{unit}"
    return f"{value:.15g}"


_BYTES: Final = frozenset({QuotaLimit.BYTES_IN, QuotaLimit.BYTES_OUT})


def _names() -> str:
    return ", ".join(QuotaLimit)


def _limit(name: str) -> QuotaLimit:
    if name not in set(QuotaLimit):
        raise InvalidArgument(f"limit {shown(name)} is none of {_names()}")
    return QuotaLimit(name)


def _value(limit: QuotaLimit, text: str) -> float | None:
    if text == UNLIMITED:
        return None
    digits, factor = text, 1.0
    if limit is QuotaLimit.TIME and text.endswith("%"):
        digits, factor = text[:-1], 0.01
    elif limit in _BYTES and text[-1:].upper() in _UNITS:
        digits, factor = text[:-1], _UNITS[text[-1:].upper()]
    try:
        value = float(digits) * factor
    except ValueError:
        value = math.nan
    return _checked(limit, value, text)


def _checked(limit: QuotaLimit, value: float, text: str) -> float:
    most = 1.0 if limit is QuotaLimit.TIME else LIMIT_MAX
    if not LIMIT_MIN <= value <= most:  # not a number is not in there, either
        said = "a second; such as 1000"
        if limit is QuotaLimit.TIME:
            said = "a part of the time; such as 0.05 or 5%"
        elif limit is QuotaLimit.METADATA:
            said = "an hour; such as 100"
        elif limit in _BYTES:
            said += ", 64K or 10M"
        raise InvalidArgument(
            f"{limit}={shown(text)} is not a number from {LIMIT_MIN:.5f} to {most:,.0f} ({said}), "
            f"and not {UNLIMITED}"
        )
    return value


def _check_quota_subject(subject: str) -> None:
    if subject == ANONYMOUS:
        return
    for kind in (_USER, _CLIENT):
        name = subject.removeprefix(kind)
        if name != subject and (name == _EACH or is_valid_name(name)):
            return
    raise InvalidArgument(
        f"subject {shown(subject)} is none of user:NAME, user:*, {ANONYMOUS}, client:ID, client:*"
    )


@dataclass(frozen=True, slots=True)
class EffectiveLimit:
    """A limit that holds for a user or a client.

    Attributes:
        limit: What it is about.
        value: How much; None: no limit.
        subject: Whose quota says so.
    """

    limit: QuotaLimit
    value: float | None
    subject: str


class Quotas:
    """All quotas of a cluster: one value, which never changes. Any thread may use it.

    Raises:
        InvalidArgument: There are more than ``QUOTAS_MAX``.
    """

    def __init__(self, quotas: Iterable[Quota] = ()) -> None:
        merged: dict[str, Limits] = {}
        for each in quotas:
            merged[each.subject] = {**merged.get(each.subject, {}), **each.limits}
        if len(merged) > QUOTAS_MAX:
            raise InvalidArgument(
                f"{len(merged)} quotas; a cluster has at most {QUOTAS_MAX}: give user:* the limits "
                "that most users have"
            )
        self._limits = merged

    def __iter__(self) -> Iterator[Quota]:
        """Go through them, in the order in which they were added."""
        return (Quota(*each) for each in self._limits.items())

    def __len__(self) -> int:
        return len(self._limits)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quotas) and self._limits == other._limits

    __hash__ = None  # type: ignore[assignment]

    def setting(self, quotas: Iterable[Quota]) -> "Quotas":
        """Return these quotas with some limits added, or changed.

        Raises:
            InvalidArgument: There are more than ``QUOTAS_MAX`` then.
        """
        return Quotas([*self, *quotas])

    def removing(self, quotas: Iterable[Quota]) -> "Quotas":
        """Return the others; of a quota that names limits, without these limits.

        Raises:
            InvalidArgument: There is no such limit.
        """
        left = dict(self._limits)
        for each in quotas:
            subject, limits = each.subject, each.limits
            there = left.get(subject)
            missing = set() if there is None else limits.keys() - there.keys()
            if there is None or missing:
                what = "" if there is None else f" for {', '.join(sorted(missing))}"
                raise InvalidArgument(f"{subject} has no quota{what}. `vq quota list` shows them")
            kept = {name: there[name] for name in there if limits and name not in limits}
            if kept:
                left[subject] = kept
            else:
                del left[subject]
        return Quotas(Quota(*kept_whole) for kept_whole in left.items())

    def of_user(self, user: str) -> Limits:
        """Return the limits of a user; "": of all who have proved no name."""
        return self._found(_USER + user if user else ANONYMOUS, _USER + _EACH)

    def of_client(self, client_id: str) -> Limits:
        """Return the limits of a client id, for each user that has such a client."""
        return self._found(_CLIENT + client_id, _CLIENT + _EACH)

    def effective(self, user: str, client_id: str | None = None) -> list[EffectiveLimit]:
        """Return what holds for a user, and for one of its clients, and whose quota says so."""
        found = [(_USER + user if user else ANONYMOUS, _USER + _EACH)]
        if client_id is not None:
            found.append((_CLIENT + client_id, _CLIENT + _EACH))
        return [
            EffectiveLimit(limit, self._limits[subject][limit], subject)
            for names in found
            for limit in QuotaLimit
            for subject in [next((n for n in names if limit in self._limits.get(n, ())), None)]
            if subject is not None
        ]

    def _found(self, own: str, default: str) -> Limits:
        mine, others = self._limits.get(own), self._limits.get(default)
        if mine is None or others is None:
            found = mine or others or _NO_LIMITS
        else:
            found = {**others, **mine}
        return found


class UsageAccount:
    """What a user, or a client of a user, has used lately.

    Args:
        user: Whose it is; "": of all who have proved no name.
        client_id: Of its client; None: of all its clients.
        limits: What it may use.
        now: The time, in seconds, of a clock that does not step.

    Attributes:
        until: When all is paid for, but for connections; while that is ahead, its requests wait.
        paces: By limit.
        connections: How many connections it has now.
    """

    __slots__ = ("_refused", "client_id", "connections", "paces", "until", "user")

    def __init__(self, user: str, client_id: str | None, limits: Limits, now: float) -> None:
        self.user = user
        self.client_id = client_id
        self.paces: dict[QuotaLimit, Pace] = {}
        self.connections = 0
        self._refused = Pace(0)
        self.until = -math.inf
        self.change(limits, now)

    def charge(self, limit: QuotaLimit, amount: float, now: float) -> None:
        """Note that so much is used of what a limit is about."""
        pace = self.paces.get(limit)
        if pace is not None:
            pace.spend(amount, now)
            self.until = max(self.until, pace.due_s)

    def refuse(self, size: int, now: float) -> float:
        """Note bytes of requests that were read and refused; return for how long to read no more.

        They are paid for beside what is carried out, at the same rate: if they were owed like that,
        those who try again would keep each other out for ever. At most ``REFUSED_S_MAX``.
        """
        pace = self.paces.get(QuotaLimit.BYTES_IN)
        if pace is None:
            return 0.0
        if self._refused.per_s != pace.per_s:
            self._refused = Pace(pace.per_s, owed_s_max=REFUSED_S_MAX)
        self._refused.spend(size, now)
        return self._refused.pause_s(now)

    def pause_s(self, limit: QuotaLimit, now: float) -> float:
        """Return how long it takes until what was used of one limit is paid for."""
        pace = self.paces.get(limit)
        return 0.0 if pace is None else pace.pause_s(now)

    def connect(self, now: float) -> float:
        """Note a new connection; return when its first request may begin."""
        pace = self.paces.get(QuotaLimit.CONNECTIONS)
        if pace is None:
            return now
        begins = now + pace.pause_s(now)
        pace.spend(1, now)
        return begins

    def disconnect(self, now: float) -> None:
        """Take back a ``connect``: it was a member of the cluster."""
        pace = self.paces.get(QuotaLimit.CONNECTIONS)
        if pace is not None:
            pace.spend(-1, now)

    def owes(self, now: float) -> bool:
        """Whether something is not paid for: then the account must be kept."""
        return any(each.pause_s(now) > 0 for each in self.paces.values())

    def change(self, limits: Limits, now: float) -> None:
        """Go on with other limits. What it owes stays owed, unless it is not limited any more."""
        for limit, rate in limits.items():
            pace = self.paces.get(limit)
            if rate is None or limit is QuotaLimit.METADATA:
                self.paces.pop(limit, None)
            elif pace is None:
                self.paces[limit] = Pace(rate, credit_s=BURST_S, owed_s_max=DEBT_S_MAX)
            else:
                pace.change(rate, now)
        for limit in self.paces.keys() - limits.keys():
            del self.paces[limit]
        self.until = max((self.paces[each].due_s for each in self._delaying), default=-math.inf)

    def worst(self, now: float) -> QuotaLimit:
        """Return the limit that a request waits for longest."""
        return max(
            self._delaying,
            key=lambda each: self.paces[each].pause_s(now),
            default=QuotaLimit.REQUESTS,
        )

    @property
    def _delaying(self) -> list[QuotaLimit]:
        """The limits that requests wait for."""
        return [each for each in self.paces if each is not QuotaLimit.CONNECTIONS]
