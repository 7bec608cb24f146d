"""A place for archives in memory that can be told not to answer: ``failing://bucket``."""

import io
import threading
from collections.abc import Callable
from typing import Any

import fsspec
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractFileSystem

URL = "failing://bucket"


class Failing(MemoryFileSystem):
    """A store in memory that can be told not to answer, or to let callers wait."""

    protocol = "failing"
    store: dict[str, Any] = {}  # noqa: RUF012  as in its base
    pseudo_dirs = [""]  # noqa: RUF012
    down = False
    #: It answers while this is set.
    free = threading.Event()
    #: Called whenever somebody asks for something.
    asked: Callable[[object], object] = lambda _: None

    @classmethod
    def reset(cls) -> None:
        """Empty it, and have it answer."""
        cls.store, cls.down = {}, False
        cls.held = frozenset()
        cls.free.set()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return MemoryFileSystem._strip_protocol(path.replace("failing://", "memory://"))

    #: Buckets that do not answer while ``free`` is not set; all of them if none is named.
    held: frozenset[str] = frozenset()

    def _check(self, path: str) -> None:
        Failing.asked(self)
        bucket = self._strip_protocol(path).strip("/").partition("/")[0]
        if not Failing.held or bucket in Failing.held:
            Failing.free.wait()
        if Failing.down:
            raise ConnectionError("nobody answers")

    def cat_file(self, path: str, *args: Any, **kwargs: Any) -> Any:
        self._check(path)
        return super().cat_file(path, *args, **kwargs)

    def _open(self, path: str, *args: Any, **kwargs: Any) -> Any:
        self._check(path)
        return super()._open(path, *args, **kwargs)

    def rm_file(self, path: str) -> None:
        self._check(path)
        super()._rm(path)


class Buckets(AbstractFileSystem):  # type: ignore[misc]
    """A store of files in buckets, without directories: ``buckets://b``; only what archives use."""

    protocol = "buckets"
    cachable = False
    files: dict[str, bytes] = {}  # noqa: RUF012
    names: set[str] = set()  # noqa: RUF012

    @classmethod
    def reset(cls) -> None:
        """Have one empty bucket, ``b``."""
        cls.files, cls.names = {}, {"b"}

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Make the bucket, as s3fs does."""
        self.names.add(path.partition("/")[0])

    def isdir(self, path: str) -> bool:
        return path in self.names or any(name.startswith(path + "/") for name in self.files)

    def open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        files = self.files

        class Written(io.BytesIO):
            def close(self) -> None:
                if not self.closed:
                    files[path] = self.getvalue()
                super().close()

        assert mode == "wb"
        return Written()

    def cat_file(self, path: str, start: Any = None, end: Any = None, **_: Any) -> bytes:
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path][start:end]

    def rm_file(self, path: str) -> None:
        if self.files.pop(path, None) is None:
            raise FileNotFoundError(path)


fsspec.register_implementation("failing", Failing, clobber=True)
fsspec.register_implementation("buckets", Buckets, clobber=True)


def stored(place: str = URL) -> list[str]:
    """Return the names of the files below a URL."""
    system, path = fsspec.core.url_to_fs(place)
    return [name.rpartition("/")[2] for name in system.find(path)]
