"""The optional packages of vq: which command installs those of one extra.

vq itself comes from a checkout or a wheel of your own: whoever asked for it by name would ask an
index for whatever package has that name there. The packages of an extra are on the index.
"""

import re
from importlib import metadata
from typing import Final

_REQUIREMENT: Final = re.compile(r"""(?P<needs>[^;]+);.*\bextra == ["'](?P<extra>[^"']+)["']""")


def install_command(extra: str) -> str:
    """Return the command that installs what an extra needs: ``pip install 'fsspec>=2025.2'``, say.

    Where vq runs from files that were never installed, the extra is named instead.
    """
    try:
        found = metadata.requires("vq") or []
    except metadata.PackageNotFoundError:
        found = []
    matches = [match for each in found if (match := _REQUIREMENT.fullmatch(each))]
    needs = [match["needs"].strip() for match in matches if match["extra"] == extra]
    if not needs:
        return f"in a checkout of vq: pip install '.[{extra}]'"
    return f"pip install {' '.join(repr(each) for each in needs)}"
