"""The quotas: read, and changed by compare-and-set, all of them together."""

from collections.abc import Callable

from vq.coordination.tree.coordinator import Coordinator
from vq.coordination.tree.single import change_single, read_single
from vq.coordination.tree.values.quotas import QuotaList
from vq.security.quotas import Quotas


async def read_quotas(coordinator: Coordinator) -> Quotas:
    """Return the quotas; none where nobody has set any. Raises as ``read_single`` does."""
    found = await read_single(coordinator, QuotaList)
    return Quotas() if found is None else found[0].quotas


async def change_quotas(coordinator: Coordinator, change: Callable[[Quotas], Quotas]) -> Quotas:
    """Change the quotas; return those that hold now. Raises as ``change_single`` does.

    ``change`` takes the quotas and returns those to write instead. It is called again if another
    one changed them at the same time.
    """
    made = await change_single(
        coordinator,
        QuotaList,
        lambda before: QuotaList(quotas=change(before.quotas)),
        what="the quotas",
    )
    return made.quotas
