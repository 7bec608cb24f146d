"""Templates to pages: one environment for each language, and what each page has."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from vq.console.web.languages import LANGUAGES, translator
from vq.console.web.shown import Shown
from vq.version import __version__

TEMPLATES: Final = Path(__file__).parent.parent / "templates"
STATIC: Final = Path(__file__).parent.parent / "static"


@cache
def environment(language: str) -> Environment:
    """Return the templates in a language. Everything that is put into them is escaped."""
    found = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.i18n"],
    )
    translate = translator(language)
    shown = Shown(translate)
    found.globals |= {
        "language": language,
        "languages": LANGUAGES,
        "version": __version__,
        "shown": shown,
    }
    found.install_gettext_callables(  # type: ignore[attr-defined]
        translate,
        lambda one, many, count: translate(one if count == 1 else many),
        newstyle=True,
    )
    for kind in ("bytes", "rate", "count", "per_s", "percent", "duration", "moment"):
        found.filters[f"as_{kind}"] = getattr(shown, kind)
    return found


def render(template: str, language: str, values: Mapping[str, Any]) -> str:
    """Return a page as text."""
    return environment(language).get_template(template).render(**values)
