"""What a page is: its address, its function, and who may see it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vq.console.accounts.accounts import AccountRole
from vq.console.web.context import PageFunction
from vq.console.web.security import BODY_BYTES_MAX


@dataclass(frozen=True, slots=True)
class ConsolePage:
    """A page.

    Attributes:
        path: Its address; ``{cluster}`` is the cluster's.
        function: Makes it.
        methods: GET, and POST if it takes a form.
        role: The least role that sees it. What operations it asks for is checked at the door, too.
        public: Nobody has to log in for it.
        body_bytes_max: Bytes of a form that it takes.
        name: Of the function.
    """

    path: str
    function: PageFunction
    methods: Sequence[str] = ("GET",)
    role: AccountRole = AccountRole.VIEWER
    public: bool = False
    body_bytes_max: int = BODY_BYTES_MAX

    @property
    def name(self) -> str:
        """The name of its function."""
        return str(getattr(self.function, "__name__", ""))

    def allows(self, role: AccountRole) -> bool:
        """Return whether a role sees the page."""
        return self.public or role.rank >= self.role.rank


def page(path: str, **options: object) -> Callable[[PageFunction], ConsolePage]:
    """Make a page of a function that only shows."""
    return lambda function: ConsolePage(path, function, **options)  # type: ignore[arg-type]


def form(
    path: str,
    role: AccountRole = AccountRole.OPERATOR,
    body_bytes_max: int = BODY_BYTES_MAX,
) -> Callable[[PageFunction], ConsolePage]:
    """Make a page of a function that shows a form and takes it."""
    return lambda function: ConsolePage(
        path, function, ("GET", "POST"), role, body_bytes_max=body_bytes_max
    )


def post(
    path: str, role: AccountRole = AccountRole.OPERATOR
) -> Callable[[PageFunction], ConsolePage]:
    """Make a page of a function that only takes a form: a link to it does nothing."""
    return lambda function: ConsolePage(path, function, ("POST",), role)
