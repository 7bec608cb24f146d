"""What commands know of the console without importing it: it may not be installed."""

import importlib.util
from typing import Final

from vq.extras import install_command

#: Packages of the console, by the names under which they are imported.
_PACKAGES: Final = (
    "alembic",
    "argon2",
    "authlib",
    "babel",
    "fastapi",
    "httpx",
    "jinja2",
    "joserfc",
    "multipart",
    "sqlalchemy",
    "uvicorn",
)


def missing_package() -> str:
    """Return which package of the console is missing, and how to install it; "": none is."""
    for name in _PACKAGES:
        if importlib.util.find_spec(name) is None:
            return f"the package {name} is not installed: {install_command('web')}"
    return ""
