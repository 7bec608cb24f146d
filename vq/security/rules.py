"""Rules say who may do what; one pure function decides by them.

    allow user:alice read,write topic:orders
    allow role:billing read group:invoices*
    deny * write topic:audit.*
    allow anonymous describe cluster

A rule is an effect, a subject, rights, and a resource with a name or the beginning of names. They
are asked in this order:

    a rule that denies the right matches       refused, whatever else matches
    a rule that allows it matches              allowed
    otherwise                                  refused

Who may read, write or manage something may also describe it, unless a rule denies that. A topic
that vq makes for itself has no rules: it inherits those of its source (``source_of``), so that no
second way leads to the same messages. Pure.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import Final, NamedTuple, Protocol

from vq.errors import InvalidArgument
from vq.limits import NAME_CHARS_MAX, TRANSACTIONAL_ID_CHARS_MAX, is_valid_name
from vq.reserved import Purpose, answered_topic, group_of, is_probe, is_reserved
from vq.shown import shown

#: Most rules of a cluster.
RULES_MAX: Final = 10_000
#: Decisions that a set of rules remembers; the least recently asked ones are forgotten.
REMEMBERED_MAX: Final = 32_768
#: The subject of those who have not proved to be a user.
ANONYMOUS: Final = "anonymous"
#: The subject of all, with or without proof.
EVERYBODY: Final = "*"
_USER: Final = "user:"
_ROLE: Final = "role:"
_PREFIX_MARK: Final = "*"


class Right(StrEnum):
    """What somebody must be allowed to do."""

    DESCRIBE = "describe"
    READ = "read"
    WRITE = "write"
    MANAGE = "manage"


#: What a right on replies is on the topic of their requests.
_OF_REPLIES: Final = {Right.READ: Right.WRITE, Right.WRITE: Right.READ}


class Resource(StrEnum):
    """What a right is about; a group is one of consumers, or of producers of half messages."""

    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional-id"
    CLUSTER = "cluster"


#: Which rights some request needs; a rule that allows another one gives ``describe`` at most.
NEEDED: Final[Mapping[Resource, frozenset[Right]]] = {
    Resource.TOPIC: frozenset(Right),
    Resource.GROUP: frozenset(Right),
    Resource.TRANSACTIONAL_ID: frozenset({Right.WRITE}),
    Resource.CLUSTER: frozenset(Right) - {Right.WRITE},
}


class RuleEffect(StrEnum):
    """What a rule does."""

    ALLOW = "allow"
    DENY = "deny"


class AskingUser(Protocol):
    """Who asks; in practice ``vq.remoting.membership.Principal``.

    Attributes:
        user: The name that was proved; "": none was.
        roles: Of the user.
    """

    @property
    def user(self) -> str: ...
    @property
    def roles(self) -> frozenset[str]: ...


class Need(NamedTuple):
    """A right that somebody needs, and on what; ``name`` is "" for the cluster."""

    right: Right
    resource: Resource
    name: str = ""

    @property
    def about(self) -> str:
        """The resource as text, and short: ``topic:orders``."""
        return _resource_text(self.resource, self.name)

    @property
    def text(self) -> str:
        """It in words, and short: ``write topic:orders``."""
        return f"{self.right} {self.about}"


@dataclass(frozen=True, slots=True)
class AccessRule:
    """One rule; see the module's text. ``str`` of it is the text that ``parse`` reads.

    Attributes:
        effect: Whether it allows or denies.
        subject: ``user:NAME``, ``role:NAME``, ``anonymous`` or ``*``.
        rights: At least one.
        resource: The kind of what it is about.
        name: The name, or the beginning of names; "" of the cluster, and of all names.
        is_prefix: ``name`` is the beginning of names.

    Raises:
        InvalidArgument: There is no such subject, right or name.
    """

    effect: RuleEffect
    subject: str
    rights: frozenset[Right]
    resource: Resource
    name: str = ""
    is_prefix: bool = False

    def __post_init__(self) -> None:
        check_subject(self.subject)
        if not self.rights:
            raise InvalidArgument(
                f"the rule for {self.subject} names no right; give one or several of "
                f"{_words(Right)}"
            )
        _check_name(self.resource, self.name, is_prefix=self.is_prefix)
        if not self.is_prefix:
            _check_has_rules(self.resource, self.name)

    @classmethod
    def parse(cls, text: str) -> "AccessRule":
        """Read the text of a rule.

        Raises:
            InvalidArgument: It is none.
        """
        words = text.split()
        if len(words) != 4 or words[0] not in set(RuleEffect):
            raise InvalidArgument(
                f"rule {shown(text)} is not an effect ({_words(RuleEffect)}), a subject, rights "
                "and a resource; for example: allow user:alice read,write topic:orders"
            )
        resource, name, is_prefix = parse_resource(words[3])
        rights = parse_rights(words[2])
        return cls(RuleEffect(words[0]), words[1], rights, resource, name, is_prefix)

    @property
    def about(self) -> str:
        """The resource as text: ``topic:orders``, ``group:invoices*``, ``cluster``."""
        mark = _PREFIX_MARK if self.is_prefix else ""
        return _resource_text(self.resource, self.name + mark)

    @property
    def rights_text(self) -> str:
        """The rights as text: ``read,write``."""
        return ",".join(each for each in Right if each in self.rights)

    def __str__(self) -> str:
        return f"{self.effect} {self.subject} {self.rights_text} {self.about}"

    def gives(self, right: Right) -> bool:
        """Whether it says something of a right: a rule that allows more also allows to describe."""
        if right in self.rights:
            return True
        return right is Right.DESCRIBE and self.effect is RuleEffect.ALLOW

    @property
    def key(self) -> "_Key":
        """What it is about, whatever the rights: a set of rules has one rule for each."""
        return self.effect, self.subject, self.resource, self.name, self.is_prefix


_Key = tuple[RuleEffect, str, Resource, str, bool]


class AccessDecision(NamedTuple):
    """What was decided.

    Attributes:
        allowed: Whether the right is there.
        need: What was decided: of a topic that inherits, what its source needs.
        rule: The rule that decided; None: no rule matches, so it is refused.
    """

    allowed: bool
    need: Need
    rule: AccessRule | None = None

    @property
    def because(self) -> str:
        """The rule that decided, in words."""
        return "no rule allows it" if self.rule is None else f"rule: {self.rule}"


class AccessRules:
    """All rules of a cluster: one value, which never changes. Any thread may use it.

    Rules that differ only in their rights are one. It remembers its last ``REMEMBERED_MAX``
    decisions, so that a request costs one look-up.

    Raises:
        InvalidArgument: There are more than ``RULES_MAX``.
    """

    def __init__(self, rules: Iterable[AccessRule] = ()) -> None:
        merged: dict[_Key, AccessRule] = {}
        for each in rules:
            before = merged.get(each.key)
            merged[each.key] = (
                each if before is None else _with_rights(each, each.rights | before.rights)
            )
        if len(merged) > RULES_MAX:
            raise InvalidArgument(
                f"{len(merged)} rules; a cluster has at most {RULES_MAX}: name roles instead of "
                "users, and the beginning of names instead of many names"
            )
        self._rules = merged
        self._index: dict[tuple[str, Resource], _Named] = {}
        for each in merged.values():
            place = each.subject, each.resource
            self._index.setdefault(place, _Named()).add(each)
        self._recent: dict[_Asked, AccessDecision] = {}
        self._older: dict[_Asked, AccessDecision] = {}

    def __iter__(self) -> Iterator[AccessRule]:
        """Go through them, in the order in which they were added."""
        return iter(self._rules.values())

    def __len__(self) -> int:
        return len(self._rules)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AccessRules) and self._rules == other._rules

    __hash__ = None  # type: ignore[assignment]

    def adding(self, rules: Iterable[AccessRule]) -> "AccessRules":
        """Return these rules and others.

        Raises:
            InvalidArgument: There are more than ``RULES_MAX`` then.
        """
        return AccessRules([*self, *rules])

    def removing(self, rules: Iterable[AccessRule]) -> "AccessRules":
        """Return the others, and what is left of these rules if they have more rights.

        Raises:
            InvalidArgument: There is no rule with these rights.
        """
        left = dict(self._rules)
        for rule in rules:
            found = left.get(rule.key)
            if found is None or not rule.rights <= found.rights:
                there = "" if found is None else f"; there is: {found}"
                raise InvalidArgument(f"there is no rule: {rule}{there}. `vq acl list` shows them")
            rights = found.rights - rule.rights
            if rights:
                left[rule.key] = _with_rights(found, rights)
            else:
                del left[rule.key]
        return AccessRules(left.values())

    def decide(
        self, asker: AskingUser, right: Right, resource: Resource, name: str
    ) -> AccessDecision:
        """Return what is decided; see the module's text."""
        asked = (asker.user, asker.roles, right, resource, name)
        decision = self._recent.get(asked)
        if decision is None:
            decision = self._older.get(asked) or decide(self, asker, Need(right, resource, name))
            if len(name) > NAME_CHARS_MAX:
                return decision  # no name is so long: it would only fill the memory
            if len(self._recent) >= REMEMBERED_MAX // 2:
                self._older, self._recent = self._recent, {}
            self._recent[asked] = decision
        return decision

    def gives_some(self, asker: AskingUser, right: Right, resource: Resource) -> bool:
        """Return whether a rule allows a right to anything of a kind, whatever others deny."""
        found = (self._index.get((each, resource)) for each in _subjects_of(asker))
        return any(each is not None and each.allows_some(right) for each in found)

    @property
    def remembered(self) -> int:
        """How many decisions it remembers."""
        return len(self._recent) + len(self._older)

    def matching(self, asker: AskingUser, need: Need) -> Iterator[AccessRule]:
        """Go through the rules that say something of a need; of each subject the closest first."""
        right, resource, name = need
        for subject in _subjects_of(asker):
            named = self._index.get((subject, resource))
            if named is not None:
                yield from (each for each in named.of(name) if each.gives(right))


_Asked = tuple[str, frozenset[str], Right, Resource, str]


def decide(rules: AccessRules, asker: AskingUser, need: Need) -> AccessDecision:
    """Return what rules say of a need; see the module's text."""
    need = source_of(need)
    allowing: AccessRule | None = None
    for rule in rules.matching(asker, need):
        if rule.effect is RuleEffect.DENY:
            return AccessDecision(False, need, rule)
        allowing = allowing or rule
    return AccessDecision(allowing is not None, need, allowing)


def source_of(need: Need) -> Need:
    """Return what is needed instead, of a topic that vq makes for itself.

    ================================  ==========================================================
    retry topic, dead letters         the right on the group; its consumers read and write them
    replies to requests to a topic    the right on that topic: who reads requests there writes the
                                      replies, who writes requests reads them
    delayed messages, transactions,   the right on the cluster: they have messages of all topics.
    and any other                     A PUT there needs what each message needs where it goes
    ================================  ==========================================================

    A topic of probes has rules like one of users.
    """
    right, resource, name = need
    if resource is not Resource.TOPIC or not is_reserved(name) or is_probe(name):
        return need
    for purpose in Purpose:
        group = group_of(name, purpose)
        if group is not None:
            own = Right.READ if right is Right.WRITE else right
            return Need(own, Resource.GROUP, group)
    answered = answered_topic(name)
    if answered is not None:
        return Need(_OF_REPLIES.get(right, right), Resource.TOPIC, answered)
    return Need(right, Resource.CLUSTER)


def can_be(resource: Resource, name: str) -> bool:
    """Whether something may have the name: anybody may ask for any text, however long."""
    if resource is Resource.CLUSTER:
        return True
    if resource is Resource.TRANSACTIONAL_ID:
        return 1 <= len(name) <= TRANSACTIONAL_ID_CHARS_MAX
    return is_valid_name(name)


def parse_resource(text: str) -> tuple[Resource, str, bool]:
    """Read ``topic:NAME``, ``topic:BEGIN*``, ``cluster`` and so on.

    Returns:
        Its kind, the name, and whether that is the beginning of names.

    Raises:
        InvalidArgument: It is none.
    """
    kind, colon, name = text.partition(":")
    if kind not in set(Resource) or bool(colon) is (kind == Resource.CLUSTER):
        raise InvalidArgument(
            f"resource {shown(text)} is none of topic:NAME, group:NAME, transactional-id:NAME and "
            "cluster; a name may end with * and is the beginning of names then"
        )
    is_prefix = name.endswith(_PREFIX_MARK)
    name = name.removesuffix(_PREFIX_MARK)
    _check_name(Resource(kind), name, is_prefix=is_prefix)
    return Resource(kind), name, is_prefix


def subject_of(user: str) -> str:
    """Return the subject that a user is, given as ``NAME``, ``user:NAME`` or ``anonymous``.

    Raises:
        InvalidArgument: It is none.
    """
    subject = user if user == ANONYMOUS or ":" in user else _USER + user
    check_subject(subject)
    return subject


def parse_rights(text: str) -> frozenset[Right]:
    """Read ``read`` or ``read,write``.

    Raises:
        InvalidArgument: There is another word.
    """
    words = text.split(",")
    if not set(words) <= set(Right):
        raise InvalidArgument(
            f"rights {shown(text)}: give one or several of {_words(Right)}, with commas between"
        )
    return frozenset(map(Right, words))


class _Named:
    """The rules of one subject for resources of one kind, by name."""

    __slots__ = ("_beginnings", "_lengths", "_names")

    def __init__(self) -> None:
        self._names: dict[str, list[AccessRule]] = {}
        self._beginnings: dict[str, list[AccessRule]] = {}
        self._lengths: list[int] = []  # of the beginnings, the longest first

    def add(self, rule: AccessRule) -> None:
        if not rule.is_prefix:
            self._names.setdefault(rule.name, []).append(rule)
            return
        self._beginnings.setdefault(rule.name, []).append(rule)
        if len(rule.name) not in self._lengths:
            self._lengths = sorted([*self._lengths, len(rule.name)], reverse=True)

    def allows_some(self, right: Right) -> bool:
        rules = chain(*self._names.values(), *self._beginnings.values())
        return any(each.effect is RuleEffect.ALLOW and each.gives(right) for each in rules)

    def of(self, name: str) -> Iterator[AccessRule]:
        yield from self._names.get(name, ())
        for length in self._lengths:
            if length <= len(name):
                yield from self._beginnings.get(name[:length], ())


def _subjects_of(asker: AskingUser) -> list[str]:
    if not asker.user:
        return [ANONYMOUS, EVERYBODY]
    roles = sorted(_ROLE + each for each in asker.roles)
    return [_USER + asker.user, *roles, EVERYBODY]


def _with_rights(rule: AccessRule, rights: frozenset[Right]) -> AccessRule:
    return AccessRule(rule.effect, rule.subject, rights, rule.resource, rule.name, rule.is_prefix)


def check_subject(subject: str) -> None:
    """Check that a text is a subject of rules.

    Raises:
        InvalidArgument: It is none; the message says what one is.
    """
    if subject in {ANONYMOUS, EVERYBODY}:
        return
    kind, _, name = subject.partition(":")
    if kind + ":" not in {_USER, _ROLE} or not is_valid_name(name):
        raise InvalidArgument(
            f"subject {shown(subject)} is none of user:NAME, role:NAME, {ANONYMOUS} (whoever has "
            f"proved no name) and {EVERYBODY} (everybody); a name has 1 to {NAME_CHARS_MAX} "
            "characters of A-Z a-z 0-9 . _ -"
        )


def _check_name(resource: Resource, name: str, *, is_prefix: bool) -> None:
    if resource is Resource.CLUSTER:
        if name or is_prefix:
            raise InvalidArgument(
                f"{shown(name)}: the cluster has no name in a rule; give: cluster"
            )
        return
    if is_prefix and not name:
        return
    if resource is Resource.TRANSACTIONAL_ID:
        good = len(name) <= TRANSACTIONAL_ID_CHARS_MAX and len(name.split()) == 1
        good = good and _PREFIX_MARK not in name and name.isprintable()
    else:
        good = is_valid_name(name) or (is_prefix and is_valid_name(name + "x"))
    if not good:
        raise InvalidArgument(
            f"{resource} {shown(name)} ({len(name)} characters) is not 1 to {NAME_CHARS_MAX} "
            "characters of A-Z a-z 0-9 . _ -, with * behind them if they are the beginning of "
            "names; a transactional id may have any characters but spaces and *"
        )


def _check_has_rules(resource: Resource, name: str) -> None:
    """Return unless it is a topic that inherits: a rule about it would decide nothing."""
    source = source_of(Need(Right.READ, resource, name))
    if source.resource is not resource:
        raise InvalidArgument(
            f"topic {shown(name)} is vq's own and has no rules: it inherits those of "
            f"{source.about}; give that"
        )


def _resource_text(resource: Resource, name: str) -> str:
    if resource is Resource.CLUSTER:
        return str(resource)
    is_plain = name.isprintable() and len(name) <= NAME_CHARS_MAX + 1
    return f"{resource}:{name if is_plain else shown(name)}"


def _words(kind: type[StrEnum]) -> str:
    return ", ".join(kind)
