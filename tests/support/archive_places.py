"""A place for archives in memory that can be told not to answer: ``failing://bucket``."""

import threading
from typing import Any

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

URL = "failing://bucket"


class Failing(MemoryFileSystem):
    """A store in memory that can be told not to answer, or to let callers wait."""

    protocol = "failing"
    store: dict[str, Any] = {}  # noqa: RUF012  as in its base
    pseudo_dirs = [""]  # noqa: RUF012
    down = False
    #: It answers while this is set.
    free = threading.Event()

    @classmethod
    def reset(cls) -> None:
        """Empty it, and have it answer."""
        cls.store, cls.down = {}, False
        cls.free.set()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return MemoryFileSystem._strip_protocol(path.replace("failing://", "memory://"))

    def _check(self) -> None:
        Failing.free.wait()
        if Failing.down:
            raise ConnectionError("nobody answers")

    def cat_file(self, *args: Any, **kwargs: Any) -> Any:
        self._check()
        return super().cat_file(*args, **kwargs)

    def _open(self, *args: Any, **kwargs: Any) -> Any:
        self._check()
        return super()._open(*args, **kwargs)

    def rm_file(self, path: str) -> None:
        self._check()
        super()._rm(path)


fsspec.register_implementation("failing", Failing, clobber=True)


def stored(place: str = URL) -> list[str]:
    """Return the names of the files below a URL."""
    system, path = fsspec.core.url_to_fs(place)
    return [name.rpartition("/")[2] for name in system.find(path)]
