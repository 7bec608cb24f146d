"""One request: who asks, for which cluster, in which language, and how it is answered."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from vq.console.acts.door import Door, LongAct, may
from vq.console.acts.table import OPERATIONS
from vq.console.clusters.history import MinuteMeter
from vq.console.clusters.site import Site
from vq.console.config import ConsoleConfig
from vq.console.database.database import Database
from vq.console.web.commands import page_of
from vq.console.web.languages import translator
from vq.console.web.rendering import render
from vq.console.web.security import PageVisitor
from vq.console.web.tables import TablePage, as_csv, as_json
from vq.errors import CoordinationError, InvalidArgument
from vq.operations.operation import Effect
from vq.shown import shown

if TYPE_CHECKING:
    from vq.console.accounts.oidc import OidcProvider
    from vq.console.web.flashes import Flashes

#: A page waits so long for a cluster of which the last look says that it is away.
AWAY_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class MenuEntry:
    """A line of the menu: where it leads below the cluster, and its English text.

    ``also``: pages without a line of their own that are reached from there.
    """

    path: str
    title: str
    also: Sequence[str] = ()

    def holds(self, here: str, cluster: str) -> bool:
        """Whether an address is in this line of the menu; ``cluster`` is that of the cluster."""
        if not self.path:
            return here == cluster
        places = (f"{cluster}/{each}" for each in (self.path, *self.also))
        return any(here == each or here.startswith(f"{each}/") for each in places)


@dataclass(slots=True)
class Console:
    """What all requests share.

    Attributes:
        config: Of the console.
        database: What it remembers.
        door: To operations.
        sites: The clusters by name.
        flashes: What is to be said on the next page.
        menu: The pages of a cluster.
        oidc: A provider of identities; None: passwords only.
        meters: What is kept of the measurements of each cluster.
    """

    config: ConsoleConfig
    database: Database
    door: Door
    sites: Mapping[str, Site]
    flashes: "Flashes"
    menu: Sequence[MenuEntry] = ()
    oidc: "OidcProvider | None" = None
    meters: Mapping[str, MinuteMeter] = field(default_factory=dict)

    def left_out(self, cluster: str) -> int:
        """How many series of measurements of a cluster are not kept."""
        return self.meters[cluster].left_out


@dataclass(slots=True)
class PageContext:
    """A request as a page's function gets it.

    Attributes:
        request: The request.
        console: What all requests share.
        visitor: Who asks.
        language: In which the answer is.
        nonce: By which the browser knows what is the console's own.
        form: What was sent; files as text.
        files: Files that were sent, as they are.
        site_or_none: The cluster that the address names.
        needs_account: Nobody can log in yet, and the console is not for this machine only.
    """

    request: Request
    console: Console
    visitor: PageVisitor
    language: str
    nonce: str
    form: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    site_or_none: Site | None = None
    needs_account: bool = False

    @property
    def site(self) -> Site:
        """The cluster of the page."""
        assert self.site_or_none is not None
        return self.site_or_none

    @property
    def secure(self) -> bool:
        """Whether the browser has come over TLS: then its cookies need it, too."""
        public = self.console.config.public_url.lower()
        return public.startswith("https:") or self.request.url.scheme == "https"

    @property
    def query(self) -> Mapping[str, str]:
        """What the address asks for."""
        return self.request.query_params

    @property
    def posted(self) -> bool:
        """Whether a form was sent."""
        return self.request.method == "POST"

    def text(self, english: str) -> str:
        """Return a text in the language of the visitor."""
        return translator(self.language)(english)

    def path(self, *parts: str) -> str:
        """Return the address of a page of this cluster."""
        return "/".join((f"/c/{self.site.name}", *(quote(each, safe="") for each in parts)))

    def param(self, name: str) -> str:
        """Return a part of the address."""
        found: str = self.request.path_params[name]
        return found

    def number(self, what: str, digits_max: int = 18) -> int:
        """Return the number in the address; ``what`` has it, for people.

        Raises:
            InvalidArgument: It is none, or has more digits.
        """
        text = self.param("number")
        if not (text.isascii() and text.isdigit() and len(text) <= digits_max):
            raise InvalidArgument(f"{shown(text)} is no number of {what}")
        return int(text)

    async def run(self, name: str, /, *arguments: Any, before: Any = None, **named: Any) -> Any:
        """Run an operation for the visitor; see ``Door.run``. The next page shows what it did."""
        acts = OPERATIONS[name].effect is Effect.ACT
        known = "" if acts else self.site.problem
        try:
            async with asyncio.timeout(AWAY_S if known else None) as bound:
                found = await self.console.door.run(
                    self.visitor.person, self.site, name, *arguments, before=before, **named
                )
        except TimeoutError:
            if not bound.expired():
                raise
            raise CoordinationError(f"no answer within {AWAY_S:g} s: {known}") from None
        if acts:
            await self.site.look_again()
        return found

    async def start(self, name: str, /, *arguments: Any, **named: Any) -> LongAct:
        """Begin a long act for the visitor; see ``Door.start``."""
        return await self.console.door.start(
            self.visitor.person, self.site, name, *arguments, **named
        )

    def may(self, name: str) -> bool:
        """Whether the visitor may ask for an operation: a page shows no button that is refused."""
        return may(self.visitor.person.role, OPERATIONS[name])

    def page_of(self, command: str) -> str:
        """Return the address of the page that does what a command does; "": there is none."""
        parts = page_of(command) if self.site_or_none is not None else ()
        return self.path(*parts) if parts else ""

    # Answers ---------------------------------------------------------------------------------
    def page(self, template: str, status: int = 200, **values: Any) -> Response:
        """Return a page, or the table of it that is asked for as a file."""
        for name, value in values.items():
            if isinstance(value, TablePage):
                file = self.exported(value, name)
                if file is not None:
                    return file
        return HTMLResponse(self.rendered(template, **values), status)

    def rendered(self, template: str, **values: Any) -> str:
        """Return a page as text."""
        common = {
            "here": self.request.url.path,
            "address": f"{self.request.url.path}?{self.request.url.query}".rstrip("?"),
            "visitor": self.visitor,
            "person": self.visitor.person,
            "csrf": self.visitor.csrf,
            "site": self.site_or_none,
            "sites": self.console.sites,
            "menu": self.console.menu,
            "nonce": self.nonce,
            "may": self.may,
            "flashes": self.console.flashes.take(self.visitor.csrf),
            "command": "",
            "live": False,
            "path": self.path if self.site_or_none is not None else None,
            "page_of": self.page_of,
            "quoted": lambda each: quote(str(each), safe=""),
        }
        return render(template, self.language, {**common, **values})

    def exported(self, found: TablePage[Any], name: str) -> Response | None:
        """Return a table as a file if that is asked for; None: it is not."""
        if found.asked.export == "csv":
            return Response(
                as_csv(found),
                media_type="text/csv; charset=utf-8",
                headers={"Content-Disposition": f'attachment; filename="{name}.csv"'},
            )
        if found.asked.export == "json":
            return Response(
                json.dumps(as_json(found), ensure_ascii=False, default=str),
                media_type="application/json",
            )
        return None

    def say(self, english: str, **values: Any) -> None:
        """Have something said on the next page."""
        text = self.text(english)
        self.console.flashes.add(self.visitor.csrf, text % values if values else text)

    def go(self, *parts: str, query: str = "") -> Response:
        """Send the browser to a page of this cluster."""
        return RedirectResponse(self.path(*parts) + query, 303)


PageFunction = Callable[[PageContext], Awaitable[Response]]
