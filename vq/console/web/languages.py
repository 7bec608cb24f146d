"""The languages of the pages. English is in the templates; others are gettext catalogues.

Catalogues are read as they are written (``.po``); nothing has to be compiled.
"""

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Final

from babel.messages.pofile import read_po

#: Name of each language in itself, by its tag for browsers.
LANGUAGES: Final[Mapping[str, str]] = {"en": "English", "zh-CN": "中文"}
LOCALE: Final = Path(__file__).parent.parent / "locale"
_ACCEPTED: Final = re.compile(r"([A-Za-z-]+)(?:\s*;\s*q=([0-9.]+))?")


@cache
def catalogue(language: str) -> Mapping[str, str]:
    """Return the texts of a language by the English ones; none for English."""
    if language == "en":
        return {}
    path = LOCALE / language.replace("-", "_") / "messages.po"
    with path.open("rb") as file:
        found = read_po(file)
    return {str(each.id): str(each.string) for each in found if each.id and each.string}


def translator(language: str) -> Callable[[str], str]:
    """Return what gives the text of a language for an English one."""
    texts = catalogue(language)
    return lambda text: texts.get(text, text)


def best_language(chosen: str, accepted: str) -> str:
    """Return the language to show: what was chosen, else what the browser likes best.

    Args:
        chosen: Tag of a language; "" or unknown: none was.
        accepted: The header ``Accept-Language``.
    """
    if chosen in LANGUAGES:
        return chosen
    wishes = []
    for place, each in enumerate(accepted[:200].split(",")):
        match = _ACCEPTED.fullmatch(each.strip())
        if match:
            try:
                quality = float(match[2] or 1)
            except ValueError:
                continue
            wishes.append((-quality, place, match[1].lower()))
    for _, _, tag in sorted(wishes):
        for known in LANGUAGES:
            if tag.split("-")[0] == known.lower().split("-")[0]:
                return known
    return "en"


def N_(text: str) -> str:
    """Mark a text that is translated where it is shown."""
    return text
