"""What users, and clients of users, have used of their quotas at this node.

An account is made for each user, and each client id of a user, that has a limit. One that owes
something stays when its last connection ends, so nobody pays by connecting again. One that owes
nothing is the same as none, and is forgotten.

While the quotas cannot be read, the last ones hold. Who has many client ids shares one account
for those beyond ``CLIENTS_PER_USER_MAX``.
"""

import math
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any, Final

from vq.broker.base.facts import Facts, counter, gauge
from vq.broker.base.notice import Notice
from vq.broker.base.problems import Problems
from vq.broker.base.runner import Runner
from vq.broker.security.known_value import KnownValue, ValueSource
from vq.clock import Clock
from vq.coordination.tree.coordinator import Coordinator
from vq.coordination.tree.values.quotas import QuotaList
from vq.errors import Throttled
from vq.log_lines import get_logger
from vq.security.quotas import QuotaLimit, Quotas, UsageAccount
from vq.security.rules import ANONYMOUS

logger = get_logger(__name__)

#: Client ids of one user that have an account of their own.
CLIENTS_PER_USER_MAX: Final = 1_000
#: The client id of the account that the others share: no client id has this text.
OTHERS: Final = "(others)"
#: Users that metrics name; the others are one, called ``OTHERS``.
USERS_TOLD_MAX: Final = 100
#: Those of a user who has too many are looked through no more often than this.
FORGET_S: Final = 1.0
#: Accounts from which on those that owe nothing are forgotten.
_FORGET_AT: Final = 256

KnownQuotas = KnownValue[Quotas]


def known_quotas(
    coordinator: Coordinator, clock: Clock, runner: Runner, rng: Random
) -> KnownQuotas:
    """Return the quotas as a node knows them; it does not follow them yet."""
    path = QuotaList.path()
    source = ValueSource(
        path,
        lambda data: QuotaList.decode(path, data).quotas,
        Quotas(),
        "quotas",
        Problems(logger, "quotas cannot be read, the last ones hold"),
    )
    return KnownValue(source, coordinator, clock, runner, rng)


class Accounts:
    """See the module's text. Loop-bound.

    Args:
        known: The quotas.
        clock: For durations.

    Attributes:
        changed: Told when other quotas hold.
        generation: Rises when other quotas hold: then each connection looks for its accounts again.
    """

    def __init__(self, known: KnownQuotas, clock: Clock) -> None:
        self._known = known
        self._now = clock.monotonic
        self._accounts: dict[tuple[str, str | None], UsageAccount] = {}
        self._clients: Counter[str] = Counter()  # accounts of clients, by user
        self._forget_at = _FORGET_AT
        self._forgot_at = -FORGET_S
        self.generation = 0
        self.changed: Final = Notice[[]]()
        self._owed_s: dict[str, float] = {}  # by user, as of the others here
        self._delayed: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        known.changed.listen(self._change)

    @property
    def enabled(self) -> bool:
        """Whether anybody has a quota."""
        return bool(self._known.current)

    @property
    def limits_time(self) -> bool:
        """Whether anybody has a limit of the loop's time."""
        return any(QuotaLimit.TIME in each.limits for each in self._known.current or ())

    def of(self, user: str, client_id: str) -> tuple[UsageAccount, ...]:
        """Return the accounts of a connection: of its user, of its client, those that there are.

        Args:
            user: "" of somebody who has proved no name.
            client_id: As the client says.
        """
        quotas = self._known.current
        if not quotas:
            return ()
        found = []
        if quotas.of_user(user):
            found.append(self._account(user, None))
        if quotas.of_client(client_id):
            found.append(self._account(user, client_id))
        return tuple(found)

    def _account(self, user: str, client_id: str | None) -> UsageAccount:
        known = self._accounts.get((user, client_id))
        if known is not None:
            return known
        if len(self._accounts) >= self._forget_at:
            self._forget()
        if client_id is not None and self._clients[user] >= CLIENTS_PER_USER_MAX:
            if self._now() - self._forgot_at >= FORGET_S:
                self._forget()
            if self._clients[user] >= CLIENTS_PER_USER_MAX and client_id != OTHERS:
                return self._account(user, OTHERS)
        made = UsageAccount(user, client_id, self._limits(user, client_id), self._now())
        self._accounts[user, client_id] = made
        self._clients[user] += client_id is not None
        return made

    def _limits(self, user: str, client_id: str | None) -> Any:
        quotas = self._known.current or Quotas()
        return quotas.of_user(user) if client_id is None else quotas.of_client(client_id)

    def _forget(self) -> None:
        """Forget accounts that owe nothing and have no connection."""
        self._forgot_at = now = self._now()
        self._accounts = {
            key: each for key, each in self._accounts.items() if each.connections or each.owes(now)
        }
        self._clients = Counter(user for user, client_id in self._accounts if client_id is not None)
        self._forget_at = max(_FORGET_AT, 2 * len(self._accounts))

    def _change(self) -> None:
        now = self._now()
        self.generation += 1
        for (user, client_id), each in self._accounts.items():
            each.change(self._limits(user, client_id), now)
        self.changed.tell()

    # What is told -------------------------------------------------------------------------------
    def note_owed(self, account: UsageAccount, seconds: float) -> None:
        """Note that an account owes for so much longer: its next request waits for that."""
        name = self._told(account.user)
        self._owed_s[name] = self._owed_s.get(name, 0.0) + seconds

    def note_delay(self, account: UsageAccount) -> None:
        """Note that a request has waited here, not at its client."""
        self._delayed[self._told(account.user)] += 1

    def refusal(
        self,
        account: UsageAccount,
        limit: QuotaLimit,
        wait_s: float,
        bound_s: float,
        *,
        requests: int = 1,
    ) -> Throttled:
        """Return the error for requests that would have to wait longer than they may, and count it.

        Args:
            account: Whose quota it is.
            limit: What of it is used up.
            wait_s: How long the request would have to wait, as far as that is known.
            bound_s: How long it may.
            requests: How many they are.
        """
        name = account.user or ANONYMOUS
        self._refused[self._told(account.user)] += requests
        pace = account.paces.get(limit)
        rate = "" if pace is None else f" = {pace.per_s:g}"
        whose = f"user {name}" + ("" if account.client_id is None else ", one client")
        return Throttled(
            f"the quota {limit}{rate} of {whose} is used up: a request would wait "
            f"{max(wait_s, bound_s):.1f} s, at most {bound_s:g} s is allowed; nothing was done",
            details={"user": name, "limit": str(limit), "delay_ms": int(wait_s * 1000) + 1},
        )

    def _told(self, user: str) -> str:
        name = user or ANONYMOUS
        known = self._owed_s.keys() | self._refused.keys()
        return name if name in known or len(known) < USERS_TOLD_MAX else OTHERS

    def facts(self) -> Iterator[Facts[Any]]:
        """Return what it tells."""
        yield Facts[Accounts].of(
            self,
            gauge(
                "vq_quotas",
                "Users and clients, or defaults of these, that have a quota.",
                lambda each: len(each._known.current or ()),
            ),
            gauge(
                "vq_quotas_age_seconds",
                "How long ago the node read the quotas; the last ones hold on.",
                lambda each: each._known.age_s if math.isfinite(each._known.age_s) else None,
            ),
        )
        yield Facts[str](
            labels=("user",),
            things=lambda: {(each,): each for each in self._owed_s.keys() | self._refused.keys()},
            facts=(
                counter(
                    "vq_quota_throttled_seconds",
                    "For how long a user, or a client of it, had used more than its quota, so that "
                    "its requests waited: at the broker, or at a client that obeys.",
                    lambda user: self._owed_s.get(user, 0.0),
                ),
                counter(
                    "vq_quota_delayed_requests",
                    "Requests of a user that waited at the broker for its quota.",
                    lambda user: self._delayed[user],
                ),
                counter(
                    "vq_quota_refused_requests",
                    "Requests of a user that were refused as Throttled: they would have waited "
                    "too long.",
                    lambda user: self._refused[user],
                ),
            ),
        )
