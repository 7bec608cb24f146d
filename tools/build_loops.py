"""Compiles the loops that run once per message while the project is installed, if possible.

It is a hook of the build backend: ``pip install`` runs it, for an editable installation and for a
wheel. It needs a C compiler and Python's headers. Without them, or with ``VQ_PURE=1`` in the
environment, nothing is compiled, and vq runs the loops in Python: the same results, more time per
message.
"""

import atexit
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = (
    Path("vq", "_message.c"),
    Path("vq", "client", "producer", "_accumulator.c"),
    Path("vq", "store", "_codec.c"),
)


class NotCompiled(Exception):
    """The loops cannot be compiled here; the message says why."""


def target_of(source: Path) -> Path:
    """Return the path of the module that ``source`` is compiled into."""
    return source.with_name(source.stem + (sysconfig.get_config_var("EXT_SUFFIX") or ".so"))


def compile_module(source: Path, target: Path) -> None:
    """Compile ``source`` into ``target``; if it fails, ``target`` is unchanged.

    Raises:
        NotCompiled: There is no compiler, or it fails.
    """
    linker = shlex.split(os.environ.get("LDSHARED") or sysconfig.get_config_var("LDSHARED") or "")
    if not linker:
        raise NotCompiled("this Python does not say how it links modules")
    made = target.with_name(f"{target.name}.{os.getpid()}.new")
    include = sysconfig.get_path("include")
    command = [*linker, "-O3", "-fPIC", f"-I{include}", str(source), "-o", str(made)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NotCompiled(f"{shlex.join(command)} failed:\n{done.stderr[-2000:]}")
        made.replace(target)
    except OSError as error:
        raise NotCompiled(f"{shlex.join(command)}: {error}") from error
    finally:
        made.unlink(missing_ok=True)


class LoopsHook(BuildHookInterface):  # type: ignore[type-arg]
    """Called by hatchling before it collects files."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile beside the sources for an editable installation, otherwise into the wheel."""
        if self.target_name != "wheel":
            return
        editable = version == "editable"
        root = Path(self.root)
        if editable:
            for source in SOURCES:  # from an earlier installation
                (root / target_of(source)).unlink(missing_ok=True)
        if os.environ.get("VQ_PURE"):
            return
        place = None
        if not editable:
            place = Path(tempfile.mkdtemp(prefix="vq-loops-"))
            atexit.register(shutil.rmtree, place, ignore_errors=True)  # the wheel is made by then
        for source in SOURCES:
            target = target_of(source)
            made = root / target if place is None else place / target.name
            try:
                compile_module(root / source, made)
            except NotCompiled as error:
                print(f"vq: {source.stem} stays in Python: {error}", file=sys.stderr)
                continue
            if not editable:
                build_data["force_include"][str(made)] = target.as_posix()
                build_data["pure_python"] = False
                build_data["infer_tag"] = True
