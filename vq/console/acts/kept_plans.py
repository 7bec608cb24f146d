"""Plans of allocation that the console keeps: who made them, and what came of them.

Bounded by age and number. Functions on a connection of the database.
"""

from typing import Final

import sqlalchemy
from sqlalchemy import Connection

from vq.clock import DAY_MS
from vq.console.accounts.accounts import now_ms
from vq.console.database.schema import plans

#: Plans of one cluster that are kept, the newest ones, and for how long at most.
PLANS_MAX: Final = 200
PLAN_DAYS: Final = 400


def keep_plan(
    connection: Connection, cluster: str, plan_id: str, person: str, made_ms: int, text: str
) -> int:
    """Keep a plan, as JSON; return its number. The oldest ones are forgotten."""
    key = connection.execute(
        plans.insert().values(
            cluster=cluster,
            plan_id=plan_id,
            person=person,
            made_ms=made_ms,
            plan=text,
            state="draft",
            outcome="",
        )
    ).inserted_primary_key
    assert key is not None
    _forget_old(connection, cluster)
    return int(key[0])


def _forget_old(connection: Connection, cluster: str) -> None:
    of = plans.c.cluster == cluster
    newest = sqlalchemy.select(plans.c.id).where(of).order_by(plans.c.id.desc())
    oldest_kept = connection.execute(newest.offset(PLANS_MAX - 1).limit(1)).scalar()
    too_old = plans.c.made_ms < now_ms() - PLAN_DAYS * DAY_MS
    if oldest_kept is not None:
        too_old |= plans.c.id < oldest_kept
    connection.execute(plans.delete().where(of, too_old))


def note_outcome(
    connection: Connection, cluster: str, plan_id: str, state: str, outcome: str
) -> None:
    """Note what came of carrying a plan out, also where that was gone on with."""
    of = (plans.c.cluster == cluster) & (plans.c.plan_id == plan_id)
    connection.execute(plans.update().where(of).values(state=state, outcome=outcome))
