"""Decides for a node what users may do, and counts and tells what they may not.

    authorization   a right that the rules do not give
    off             is not looked for: nothing here is asked
    permissive      is counted and logged, and the request is carried out
    enforced        refuses the request

A member of the cluster, and a super user, has all rights. While no rules are known, nobody else has
any (``known_rules``).
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from vq.broker.base.config import Authorization
from vq.broker.base.facts import Facts, counter
from vq.broker.security.known_rules import KnownRules
from vq.clock import Clock
from vq.errors import Busy, NotAuthorized, VqError
from vq.log_lines import get_logger
from vq.remoting.membership import Principal
from vq.security.rules import ANONYMOUS, AccessDecision, Need, Resource, Right, can_be
from vq.shown import shown

logger = get_logger(__name__)

#: At most one line in this time tells of what the rules do not allow.
TELL_S: Final = 10.0
#: Different users and needs that one line chooses from; more are only counted.
TOLD_MAX: Final = 1_000
#: Different users and needs that are remembered for operators; the oldest is forgotten first.
MISSING_MAX: Final = 1_000


@dataclass(slots=True)
class Missing:
    """What somebody lacked, for operators who are to add rules.

    Attributes:
        asker: Who.
        need: The right, and on what.
        why: It was not given.
        by_rule: A rule may give it; False: it is another user's.
        denied: A rule denies it.
        requests: That needed it.
        last_ms: When the last one came, in milliseconds since 1970.
    """

    asker: Principal
    need: Need
    why: str
    by_rule: bool
    denied: bool
    requests: int = 0
    last_ms: int = 0


class Authority:
    """See the module's text. Loop-bound.

    Args:
        mode: See the module's text.
        super_users: They may do everything.
        known: The rules.
        clock: Bounds log lines.

    Attributes:
        changed: Told when other rules hold, or none.
        enabled: Somebody is asked at all.
        enforces: What the rules do not allow is refused.
    """

    def __init__(
        self,
        mode: Authorization,
        super_users: tuple[str, ...],
        known: KnownRules,
        clock: Clock,
    ) -> None:
        self.enabled: Final = mode is not Authorization.OFF
        self.enforces: Final = mode is Authorization.ENFORCED
        self._super_users = frozenset(super_users)
        self._known = known
        self.changed: Final = known.changed
        self._now = clock.monotonic
        self._wall_ms = clock.wall_ms
        self._missing: dict[tuple[str, Need], Missing] = {}
        self._counts: Counter[tuple[Right, Resource]] = Counter()
        self._untold: Counter[tuple[str, Need]] = Counter()
        self._why: dict[tuple[str, Need], str] = {}
        self._untold_others = 0
        self._told_at = -TELL_S

    def check(self, asker: Principal, right: Right, resource: Resource, name: str) -> bool:
        """Return whether ``asker`` has a right; False: it has not, and is carried out all the same.

        Raises:
            NotAuthorized: It has not.
            Busy: The rules are not known.
        """
        if asker.proved or asker.user in self._super_users:
            return True
        rules = self._known.current
        if rules is None:
            self._refuse_all(asker, Need(right, resource, name))
            return False
        decision = rules.decide(asker, right, resource, name)
        if not decision.allowed:
            self.refuse(asker, decision.need, decision)
        return decision.allowed

    def check_some(self, asker: Principal, right: Right, resource: Resource) -> None:
        """Return if ``asker`` has a right to anything of a kind.

        Raises:
            NotAuthorized: It has not.
            Busy: The rules are not known.
        """
        self.check_known(asker)
        rules = self._known.current
        if rules is None or asker.proved or asker.user in self._super_users:
            return
        if not rules.gives_some(asker, right, resource):
            self.refuse(asker, Need(right, resource, "*"), why="no rule allows any")

    def allows(self, asker: Principal, right: Right, resource: Resource, name: str) -> bool:
        """Return whether ``asker`` has a right; nobody is told that it asked, or had it not."""
        if asker.proved or asker.user in self._super_users:
            return True
        rules = self._known.current
        return rules is not None and rules.decide(asker, right, resource, name).allowed

    def check_known(self, asker: Principal) -> None:
        """Return if the rules are known, which decided earlier what ``asker`` may do.

        Raises:
            Busy: They are not.
        """
        if self._known.current is None and not (asker.proved or asker.user in self._super_users):
            self._refuse_all(asker, Need(Right.DESCRIBE, Resource.CLUSTER))

    def refusal(
        self, asker: Principal, right: Right, resource: Resource, name: str
    ) -> VqError | None:
        """Return what ``check`` raises; None: nothing."""
        try:
            self.check(asker, right, resource, name)
        except VqError as error:
            return error
        return None

    def refuse(
        self,
        asker: Principal,
        need: Need,
        decision: AccessDecision | None = None,
        why: str = "",
        details: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Note that somebody lacks a right.

        Args:
            asker: Who.
            need: The right.
            decision: Of the rules.
            why: Instead of what they say.
            details: Told with the error, too.

        Raises:
            NotAuthorized: Unless such requests are carried out.
        """
        rule = None if decision is None else decision.rule
        by_rule = not why
        why = why or (decision.because if decision is not None else "")
        self._note(asker, need, why)
        if can_be(need.resource, need.name):
            self._remember(asker, need, why, by_rule=by_rule, denied=by_rule and rule is not None)
        if self.enforces:
            user = asker.user or ANONYMOUS
            raise NotAuthorized(
                f"user {user} has no right to {need.text}: {why}",
                details={
                    "user": user,
                    "right": str(need.right),
                    "resource": need.about,
                    "rule": "" if rule is None else str(rule),
                    **details,
                },
            )

    def _refuse_all(self, asker: Principal, need: Need) -> None:
        known = self._known
        why = (
            f"this node has not been able to read the rules of access for {known.age_s:.0f} s, "
            f"rules_age_max_s = {known.age_max_s:g}"
            if known.age_s > known.age_max_s
            else "this node cannot read the rules of access: a newer vq has written them, or they "
            "are damaged; `vq acl list` shows more"
        )
        self._note(asker, need, why)
        if self.enforces:
            raise Busy(why)

    # What is told -------------------------------------------------------------------------------
    def _note(self, asker: Principal, need: Need, why: str) -> None:
        self._counts[need.right, need.resource] += 1
        if not can_be(need.resource, need.name):  # it may be as long as a header
            need = need._replace(name=shown(need.name))
        key = asker.user or ANONYMOUS, need
        if key in self._untold or len(self._untold) < TOLD_MAX:
            self._untold[key] += 1
            self._why[key] = why
        else:
            self._untold_others += 1

    def _remember(
        self, asker: Principal, need: Need, why: str, *, by_rule: bool, denied: bool
    ) -> None:
        key, missing = (asker.user, need), self._missing
        found = missing.pop(key, None) or Missing(asker, need, why, by_rule, denied)
        if len(missing) >= MISSING_MAX:
            del missing[next(iter(missing))]
        found.asker, found.why, found.by_rule, found.denied = asker, why, by_rule, denied
        found.requests += 1
        found.last_ms = self._wall_ms()
        missing[key] = found

    def missing(self) -> list[Missing]:
        """Return what was lacked since the start and is lacked now, the most frequent first.

        A right that the rules give by now is left out, and forgotten.
        """
        rules = self._known.current
        if rules is not None:
            given = [
                key
                for key, each in self._missing.items()
                if each.by_rule and rules.decide(each.asker, *each.need).allowed
            ]
            for key in given:
                del self._missing[key]
        return sorted(self._missing.values(), key=lambda each: -each.requests)

    def tell(self) -> None:
        """Log what was noted since the last line, if that was long enough ago; called often."""
        if not self._untold or self._now() - self._told_at < TELL_S:
            return
        self._told_at = self._now()
        ((user, need), count), *_ = self._untold.most_common(1)
        logger.warning(
            "requests without a right",
            carried_out=not self.enforces,
            requests=sum(self._untold.values()) + self._untold_others,
            different=len(self._untold),
            most=count,
            user=user,
            right=need.right,
            resource=need.about,
            because=self._why[user, need],
        )
        self._untold.clear()
        self._why.clear()
        self._untold_others = 0

    def facts(self) -> Iterator[Facts[Any]]:
        """Return what it tells."""
        yield from self._known.facts()
        yield Facts[int](
            labels=("right", "resource"),
            things=lambda: {
                (str(right), str(resource)): count
                for (right, resource), count in self._counts.items()
            },
            facts=(
                counter(
                    "vq_requests_without_right",
                    "Rights that the rules of access did not give: the request was refused or, if "
                    "authorization is permissive, carried out.",
                    int,
                ),
            ),
        )
