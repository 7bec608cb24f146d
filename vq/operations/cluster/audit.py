"""What operators did: the records of acts, the newest first.

Loop-bound functions on a ``ClusterClient``. ``vq.operations.base.acts`` writes the records.
"""

from dataclasses import dataclass
from typing import Final

from vq.client.cluster import ClusterClient
from vq.coordination.leases import acts
from vq.coordination.leases.acts import KnownAct
from vq.coordination.tree.coordinator import READS_PER_CALL_MAX
from vq.errors import InvalidArgument

#: Acts that one call returns, unless it is told otherwise.
COUNT: Final = 100


@dataclass(frozen=True, slots=True)
class OperatorAct:
    """An act of an operator.

    Attributes:
        record: The name of its record; later ones have greater names.
        time_ms: When it began, by the clock of the operator's machine; 0: the record is damaged.
        who: User and machine, as the process said.
        user: Its user at brokers; "": none.
        identity: The name by which ZooKeeper knew it; "": none.
        person: For whom a console acted, and from which address; "": for nobody.
        act: The operation.
        subject: The topic, group, user or node that it is about.
        arguments: All of them, as JSON, without secrets; perhaps cut.
        before, after: What was there, as JSON; "": not known, or nothing.
        outcome: "done", "failed", "unknown", or "begun": nothing was written after it.
        error: Why it is not done.
        ended_ms: When it ended; None: "begun".
        changed: Somebody has changed the record since.
    """

    record: str
    time_ms: int
    who: str
    user: str
    identity: str
    person: str
    act: str
    subject: str
    arguments: str
    before: str
    after: str
    outcome: str
    error: str
    ended_ms: int | None
    changed: bool


async def list_acts(
    cluster: ClusterClient,
    *,
    by: str = "",
    what: str = "",
    since_ms: int | None = None,
    count: int = COUNT,
) -> list[OperatorAct]:
    """Return what operators did, the newest first. The last 5,000 acts are kept.

    Args:
        cluster: A started client, which may read the records where ZooKeeper's tree has ACLs.
        by: Only of those whose user, machine, identity or person has this in its name.
        what: Only acts whose operation or subject has this in its name.
        since_ms: Only since then, in milliseconds since 1970.
        count: At most so many.

    Raises:
        InvalidArgument: ``count`` is below 1.
        NotAllowed: Records are not for this client.
    """
    if count < 1:
        raise InvalidArgument(f"count = {count} is below 1")
    names = await acts.list_acts(cluster.coordinator)
    if since_ms is not None:
        names = [each for each in names if each >= f"{max(0, since_ms):013d}"]
    found: list[OperatorAct] = []
    step = READS_PER_CALL_MAX // 2
    for end in range(len(names), 0, -step):
        part = names[max(0, end - step) : end]
        for known in reversed(await acts.read_acts(cluster.coordinator, part)):
            if _fits(known, by, what):
                found.append(_act(known))
                if len(found) == count:
                    return found
    return found


def _fits(known: KnownAct, by: str, what: str) -> bool:
    record = known.record
    of = (record.who, record.user, record.identity, record.person)
    return any(by in each for each in of) and any(
        what in each for each in (record.act, record.subject)
    )


def _act(known: KnownAct) -> OperatorAct:
    record, outcome = known.record, known.outcome
    return OperatorAct(
        known.act,
        record.time_ms,
        record.who,
        record.user,
        record.identity,
        record.person,
        record.act,
        record.subject,
        record.arguments,
        record.before,
        "" if outcome is None else outcome.after,
        "begun" if outcome is None else outcome.outcome,
        known.problem or ("" if outcome is None else outcome.error),
        None if outcome is None else outcome.time_ms,
        known.changed,
    )
