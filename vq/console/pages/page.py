"""What a page is: its address, its function, and who may see it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from vq.console.accounts.accounts import Role
from vq.console.web.context import PageFunction

_ORDER: Final = tuple(Role)


@dataclass(frozen=True, slots=True)
class Page:
    """A page.

    Attributes:
        path: Its address; ``{cluster}`` is the cluster's.
        function: Makes it.
        methods: GET, and POST if it takes a form.
        role: The least role that sees it. What operations it asks for is checked at the door, too.
        public: Nobody has to log in for it.
        name: Of the function.
    """

    path: str
    function: PageFunction
    methods: Sequence[str] = ("GET",)
    role: Role = Role.VIEWER
    public: bool = False

    @property
    def name(self) -> str:
        """The name of its function."""
        return str(getattr(self.function, "__name__", ""))

    def allows(self, role: Role) -> bool:
        """Return whether a role sees the page."""
        return self.public or _ORDER.index(role) >= _ORDER.index(self.role)


def page(path: str, **options: object) -> Callable[[PageFunction], Page]:
    """Make a page of a function that only shows."""
    return lambda function: Page(path, function, **options)  # type: ignore[arg-type]


def form(path: str, role: Role = Role.OPERATOR) -> Callable[[PageFunction], Page]:
    """Make a page of a function that shows a form and takes it."""
    return lambda function: Page(path, function, ("GET", "POST"), role)
