"""All pages, and the menu."""

from collections.abc import Sequence
from types import ModuleType
from typing import Final

from vq.console.pages import (
    accounts,
    allocation,
    archive,
    audit,
    brokers,
    dead_letters,
    delayed,
    entrance,
    events,
    groups,
    jobs,
    messages,
    overview,
    settings,
    topics,
    transactions,
)
from vq.console.pages.page import Page
from vq.console.web.context import Entry
from vq.console.web.languages import N_

_MODULES: Final[Sequence[ModuleType]] = (
    entrance,
    overview,
    brokers,
    allocation,
    topics,
    messages,
    groups,
    dead_letters,
    delayed,
    transactions,
    archive,
    audit,
    jobs,
    settings,
    accounts,
    events,
)

PAGES: Final[Sequence[Page]] = [
    each for module in _MODULES for each in vars(module).values() if isinstance(each, Page)
]

MENU: Final[Sequence[Entry]] = (
    Entry("", N_("Overview")),
    Entry("brokers", N_("Brokers")),
    Entry("allocation", N_("Allocation")),
    Entry("topics", N_("Topics")),
    Entry("groups", N_("Groups")),
    Entry("dead-letters", N_("Dead letters")),
    Entry("delayed", N_("Delayed")),
    Entry("transactions", N_("Transactions")),
    Entry("archive", N_("Archive")),
    Entry("audit", N_("Audit")),
    Entry("settings", N_("Settings")),
)
