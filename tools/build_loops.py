"""Puts the loops that run once per message, compiled, into an installation or a wheel.

It is a hook of the build backend: ``pip install`` runs it, for an editable installation and for a
wheel. It compiles the C files of ``SOURCES``, which needs a C compiler and Python's headers.
Without them, or with ``VQ_PURE=1`` in the environment, nothing is compiled, and vq runs the loops
in Python: the same results, more time per message.

``tools/release.py`` compiles for other Pythons and machines than this one. It names the directory
with the modules in ``VQ_LOOPS`` and the wheel's tag in ``VQ_WHEEL_TAG``.
"""

import atexit
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = (
    Path("vq", "_message.c"),
    Path("vq", "client", "consumer", "deliver", "_asking.c"),
    Path("vq", "client", "consumer", "deliver", "_bulk.c"),
    Path("vq", "client", "producer", "_accumulator.c"),
    Path("vq", "remoting", "_room.c"),
    Path("vq", "store", "commit", "_handover.c"),
    Path("vq", "store", "records", "_codec.c"),
    Path("vq", "store", "records", "_columns.c"),
)
#: Without NDEBUG the headers of Python check the type of each tuple and list at each access.
FLAGS = ("-O3", "-DNDEBUG", "-fPIC")


class NotCompiled(Exception):
    """The loops cannot be compiled here; the message says why."""


def target_of(source: Path, suffix: str | None = None) -> Path:
    """Return the path of the module that ``source`` is compiled into, for this Python."""
    suffix = suffix or sysconfig.get_config_var("EXT_SUFFIX") or ".so"
    return source.with_name(source.stem + suffix)


def compile_module(source: Path, target: Path, flags: Sequence[str] = FLAGS) -> None:
    """Compile ``source`` into ``target`` for this Python; if it fails, ``target`` is unchanged.

    Raises:
        NotCompiled: There is no compiler, or it fails.
    """
    linker = shlex.split(os.environ.get("LDSHARED") or sysconfig.get_config_var("LDSHARED") or "")
    if not linker:
        raise NotCompiled("this Python does not say how it links modules")
    compile_with(linker, source, target, Path(sysconfig.get_path("include")), flags)


def compile_with(
    linker: list[str],
    source: Path,
    target: Path,
    include: Path,
    flags: Sequence[str] = FLAGS,
) -> None:
    """Compile ``source`` into ``target`` with the headers in ``include``; see `compile_module`.

    Debian's headers name files of the directory above, which comes after the compiler's own.
    """
    made = target.with_name(f"{target.name}.{os.getpid()}.new")
    include_too = ["-idirafter", str(include.parent)]
    command = [*linker, *flags, f"-I{include}", *include_too, str(source), "-o", str(made)]
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
        root = Path(self.root)
        if version == "editable":
            for source in SOURCES:  # from an earlier installation
                (root / target_of(source)).unlink(missing_ok=True)
        if os.environ.get("VQ_PURE"):
            return
        if version == "editable":
            _compile_all(root, lambda source: root / target_of(source))
            return
        ready = os.environ.get("VQ_LOOPS")
        place = Path(ready or tempfile.mkdtemp(prefix="vq-loops-"))
        if not ready:
            atexit.register(shutil.rmtree, place, ignore_errors=True)  # the wheel is made by then
            _compile_all(root, lambda source: place / target_of(source).name)
        modules = {
            module: source.parent / module.name
            for source in SOURCES
            for module in place.glob(f"{source.stem}.*.so")
        }
        build_data["force_include"].update({str(k): v.as_posix() for k, v in modules.items()})
        if modules:
            build_data["pure_python"] = False
            build_data["infer_tag"] = not ready
        if ready:
            build_data["tag"] = os.environ["VQ_WHEEL_TAG"]


def _compile_all(root: Path, target: Callable[[Path], Path]) -> None:
    for source in SOURCES:
        try:
            compile_module(root / source, target(source))
        except NotCompiled as error:
            print(f"vq: {source.stem} stays in Python: {error}", file=sys.stderr)
