"""The quotas: how much users, and clients of users, may use of the brokers.

Loop-bound functions on a ``ClusterClient``.
"""

from collections.abc import Callable, Iterable

from vq.client.cluster import ClusterClient
from vq.coordination.security.quotas import change_quotas, read_quotas
from vq.errors import InvalidArgument, InvalidState
from vq.limits import is_valid_name
from vq.operations.base.acts import About, acting_user, audited
from vq.operations.base.changes import ChangeUnknown, unknown_when_cut
from vq.operations.base.metadata_quota import metadata_limit
from vq.security.quotas import EffectiveLimit, Quota, QuotaLimit, value_text
from vq.security.rules import ANONYMOUS, subject_of
from vq.shown import shown


class QuotasUnknown(ChangeUnknown):
    """ZooKeeper went away while the quotas were changed."""

    hint = "`vq quota list` shows the quotas; the change may be repeated"


async def list_quotas(cluster: ClusterClient) -> list[Quota]:
    """Return all quotas, in the order in which their subjects were added.

    Raises:
        Unreadable: A newer vq has written them, or they are damaged; at brokers the last ones hold.
    """
    return list(await read_quotas(cluster.coordinator))


@audited(About.QUOTAS)
async def set_quotas(cluster: ClusterClient, quotas: Iterable[Quota | str]) -> list[Quota]:
    """Set limits, all of them or none; return all quotas.

    Limits that a subject has already and that are not named stay. Brokers obey at once, also for
    connections that are open.

    Args:
        cluster: A started client.
        quotas: Quotas, or texts of quotas: ``"user:alice bytes-in=10M requests=1000"``.

    Raises:
        InvalidArgument: A text is no quota, or there would be more than 10,000 subjects.
        InvalidState: Who asks has a limit of metadata, and would change such limits.
        QuotasUnknown: ZooKeeper went away; they are set or not.
    """
    new = _given(quotas, Quota.parse)
    await _check_not_limited(cluster, new)
    with unknown_when_cut("setting quotas", QuotasUnknown):
        return list(await change_quotas(cluster.coordinator, lambda held: held.setting(new)))


@audited(About.QUOTAS)
async def remove_quotas(cluster: ClusterClient, quotas: Iterable[Quota | str]) -> list[Quota]:
    """Remove limits, all of them or none; return the quotas that are left.

    Requests that wait for a limit that is gone go on at once.

    Args:
        cluster: A started client.
        quotas: Subjects, ``"user:alice"``, or with the limits to remove:
            ``"user:alice bytes-in requests"``.

    Raises:
        InvalidArgument: A text is none, or there is no such limit.
        InvalidState: Who asks has a limit of metadata, and would change such limits.
        QuotasUnknown: ZooKeeper went away; they are removed or not.
    """
    old = _given(quotas, Quota.parse_removed)
    await _check_not_limited(cluster, old)
    with unknown_when_cut("removing quotas", QuotasUnknown):
        return list(await change_quotas(cluster.coordinator, lambda held: held.removing(old)))


async def show_quota(
    cluster: ClusterClient, user: str, client: str | None = None
) -> list[EffectiveLimit]:
    """Return the limits that hold for a user, and whose quota says so.

    Args:
        cluster: A started client.
        user: Its name, ``user:NAME``, or ``anonymous``: whoever has proved no name.
        client: A client id of the user, whose limits follow; None: only those of the user.

    Raises:
        InvalidArgument: A name is none.
    """
    subject = subject_of(user)
    kind, _, name = subject.partition(":")
    if subject != ANONYMOUS and kind != "user":
        raise InvalidArgument(f"user {shown(user)} is no user: give NAME or {ANONYMOUS}")
    if client and not is_valid_name(client):
        raise InvalidArgument(f"client {shown(client)} is no client id")
    return (await read_quotas(cluster.coordinator)).effective(name, client)


async def _check_not_limited(cluster: ClusterClient, quotas: Iterable[Quota]) -> None:
    """Refuse that somebody who is limited changes limits of metadata: it would be no limit."""
    if not any(QuotaLimit.METADATA in each.limits or not each.limits for each in quotas):
        return
    user = acting_user(cluster)
    limit = await metadata_limit(cluster, user)
    if limit is not None:
        raise InvalidState(
            f"user {user} has the quota metadata={value_text(QuotaLimit.METADATA, limit)} and so "
            "cannot change such quotas: somebody without one can"
        )


def _given(quotas: Iterable[Quota | str], parse: Callable[[str], Quota]) -> list[Quota]:
    if isinstance(quotas, str | Quota):
        raise InvalidArgument(f"quotas = {shown(quotas)} is one quota; give a list of quotas")
    found = []
    for each in quotas:
        given: object = each
        if not isinstance(given, Quota | str):
            raise InvalidArgument(
                f"quota {shown(given)} is {type(given).__name__}; give vq.admin.Quota or text"
            )
        found.append(parse(str(given)) if isinstance(given, str) else given)
    return found
