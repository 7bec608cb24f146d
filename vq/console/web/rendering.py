"""Templates to pages: one environment for each language, and what each page has."""

from collections.abc import Mapping
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

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
    found.filters["with_code"] = with_code
    return found


def with_code(text: str) -> Markup:
    """Return a text, escaped, with what stands between backticks as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # one backtick too many is a backtick
        return escape(text)
    codes = (Markup("<code>{}</code>").format(each) for each in parts[1::2])
    return Markup("").join(
        each for pair in zip_longest(map(escape, parts[::2]), codes, fillvalue="") for each in pair
    )


def render(template: str, language: str, values: Mapping[str, Any]) -> str:
    """Return a page as text."""
    return environment(language).get_template(template).render(**values)
