"""Compiles the record codec while the project is being installed, if this machine can.

A hook of the build backend: ``pip install`` runs it, for an editable installation and for a wheel.
Needs a C compiler and Python's headers. Without them, or with ``VQ_PURE=1`` in the environment,
nothing is compiled and vq runs its Python loops: the same results, more time per message.
"""

import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("vq", "store", "_codec.c")
TARGET = SOURCE.with_name("_codec" + (sysconfig.get_config_var("EXT_SUFFIX") or ".so"))


class NotCompiled(Exception):
    """It cannot be compiled here; the message says why."""


def compile_codec(source: Path, target: Path) -> None:
    """Compile ``source`` into ``target``, which is there whole or as it was before.

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


class CodecHook(BuildHookInterface):  # type: ignore[type-arg]
    """Called by hatchling before it puts files together."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile beside the source for an editable installation, else into the wheel."""
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        target = root / TARGET
        if version != "editable":
            target = Path(tempfile.mkdtemp(prefix="vq-codec-")) / TARGET.name
        if os.environ.get("VQ_PURE"):
            if version == "editable":
                target.unlink(missing_ok=True)
            return
        try:
            compile_codec(root / SOURCE, target)
        except NotCompiled as error:
            print(f"vq: the record codec stays in Python: {error}", file=sys.stderr)
            return
        if version != "editable":
            build_data["force_include"][str(target)] = TARGET.as_posix()
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
