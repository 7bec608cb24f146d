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
    definitions,
    delayed,
    descriptors,
    entrance,
    events,
    explain,
    groups,
    jobs,
    messages,
    oidc,
    overview,
    reports,
    settings,
    tokens,
    topics,
    transactions,
)
from vq.console.pages.page import ConsolePage
from vq.console.web.context import MenuEntry
from vq.console.web.languages import N_

_MODULES: Final[Sequence[ModuleType]] = (
    entrance,
    oidc,
    overview,
    brokers,
    allocation,
    topics,
    messages,
    descriptors,
    groups,
    dead_letters,
    delayed,
    transactions,
    archive,
    explain,
    reports,
    audit,
    jobs,
    definitions,
    settings,
    accounts,
    tokens,
    events,
)

PAGES: Final[Sequence[ConsolePage]] = [
    each for module in _MODULES for each in vars(module).values() if isinstance(each, ConsolePage)
]

MENU: Final[Sequence[MenuEntry]] = (
    MenuEntry("", N_("Overview")),
    MenuEntry("brokers", N_("Brokers")),
    MenuEntry("allocation", N_("Allocation")),
    MenuEntry("topics", N_("Topics")),
    MenuEntry("groups", N_("Groups")),
    MenuEntry("dead-letters", N_("Dead letters")),
    MenuEntry("delayed", N_("Delayed")),
    MenuEntry("transactions", N_("Transactions")),
    MenuEntry("archive", N_("Archive")),
    MenuEntry("explain", N_("Explain")),
    MenuEntry("reports", N_("Reports")),
    MenuEntry("audit", N_("Audit"), also=("acts", "jobs")),
    MenuEntry("definitions", N_("Definitions")),
    MenuEntry("settings", N_("Settings"), also=("descriptors",)),
)
