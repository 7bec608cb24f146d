"""One block: a file, or an archive, of whole batches, and the cache that bounds open files.

A block knows its own bytes and its sparse index, not its neighbours (``blocks``) and not when it is
full, flushed or deleted (``log``).

    position in the file   0                length           allocated
                           | batches        | zeros (space taken ahead) |
    offset in the log      start_offset     end_offset

An archived block (``archive``) does not change. Who reads one on the log's thread is told what is
not in memory (``NotInMemory``); its first batch, its epochs and its facts are. So is the index of
any block that has none beside it: to build it, all of the block is read.
"""

import contextlib
import errno
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

from vq.errors import CorruptData
from vq.log_lines import get_logger
from vq.store.archive.archive import Archive, ArchiveFiles, place_of
from vq.store.archive.archived_file import (
    ArchivedFile,
    ChunkCache,
    Fetch,
    NotInMemory,
    fetch_stored,
)
from vq.store.disk.disk import Disk, File
from vq.store.log.block_facts import BlockFacts
from vq.store.log.piece import Piece
from vq.store.records.batches import read_headers
from vq.store.records.format import (
    INDEX_SUFFIX,
    BatchHeader,
    block_name,
    parse_block_name,
)
from vq.store.records.offset_index import OffsetIndex

logger = get_logger(__name__)

#: Errors that say "no space" and nothing worse.
FULL_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
#: Errors that say nothing about the medium and may pass by themselves.
PASSING_ERRNOS: Final = FULL_ERRNOS | {errno.EMFILE, errno.ENFILE}
_ALLOCATION_UNIT: Final = 4096
_WALK_BYTES: Final = 256 * 1024
#: Stands for the index among the chunks of an archive.
INDEX_NUMBER: Final = -1


class BlockCache:
    """Keeps the blocks used last open, so that the number of descriptors is bounded.

    An open block takes one descriptor and, once read from, a second one for its mapping. A block
    with bytes that are not flushed yet is never closed, so the bound can be exceeded by the number
    of blocks that are dirty at the same moment. Those are set apart (``pin``), so that ``trim``
    costs as much as it closes, however many blocks are dirty.

    Shared by all logs of a node. A block is used by one thread at a time; ``trim`` closes blocks of
    any log, so it is called only on the thread that appends and reads. Another thread that works
    on a block takes it out first (``give``), or does no more than ``unpin`` it.

    Args:
        open_blocks_max: The bound.
        waits: Whoever reads from these blocks may wait until an archive is decompressed.

    Attributes:
        chunks: What is in memory of archived blocks.
    """

    def __init__(self, open_blocks_max: int = 256, *, waits: bool = False) -> None:
        self.waits = waits
        self.chunks = ChunkCache()
        self._open_blocks_max = open_blocks_max
        self._clean: OrderedDict[Block, None] = OrderedDict()  # the one used last comes last
        self._dirty: dict[Block, None] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._clean) + len(self._dirty)

    def opened(self, block: "Block") -> None:
        """Note that ``block`` is open now."""
        (self._dirty if block.dirty else self._clean)[block] = None

    def used(self, block: "Block") -> None:
        """Note that an open block was used."""
        if block in self._clean:
            self._clean.move_to_end(block)

    def pin(self, block: "Block") -> None:
        """Note that an open block has become dirty."""
        self._clean.pop(block, None)
        self._dirty[block] = None

    def unpin(self, block: "Block") -> None:
        """Note that a block is no longer dirty; safe beside ``trim``."""
        with self._lock:
            if self._dirty.pop(block, self) is None:
                self._clean[block] = None

    def trim(self, keep: "Block | None" = None) -> None:
        """Close the blocks used least recently, but not ``keep``, until few enough are open."""
        excess = len(self._clean) + len(self._dirty) - self._open_blocks_max
        if excess <= 0 or not self._clean:
            return
        with self._lock:
            victims = [block for block in islice(self._clean, excess + 1) if block is not keep]
            for block in victims[:excess]:
                _close(block)

    def give(self, block: "Block", other: "BlockCache") -> None:
        """Hand the block over to another cache, open or closed as it is."""
        with self._lock:
            if self.closed(block):
                other.opened(block)
            block.cache = other

    def close_all(self) -> None:
        """Close every open block."""
        for block in [*self._clean, *self._dirty]:
            block.close()

    def closed(self, block: "Block") -> bool:
        """Note that ``block`` closes its file; False if another thread closed it just before."""
        return self._clean.pop(block, self) is None or self._dirty.pop(block, self) is None


def _close(block: "Block") -> None:
    """Close a clean block; an error is logged only, since it concerns no other log."""
    try:
        block.close()
    except OSError as error:
        logger.warning("closing a block failed", path=block.path, error=error)


class Block:
    """A run of batches ``[start_offset, end_offset)`` in one file.

    Attributes:
        length: Bytes of whole batches; the file may be longer by space taken ahead.
        allocated: Bytes of the file. Invariant: ``length <= allocated``.
        synced_length: Bytes known to be durable. Invariant: ``synced_length <= length``.
        synced_allocated: ``allocated`` when the file was flushed last, -1: not since it was opened.
        messages: Messages in the block; -1 until the index was loaded.
        index: The sparse index, or None until it is needed.
        index_saved: Whether ``index`` may be forgotten: it is beside the block, or can be built.
        facts: Of a block that takes no more appends, once they are known.
        ahead_since: Whether the block took no more appends when its append time was first seen to
            lie ahead of the clock, and when that was, of a monotonic clock; None: it does not. For
            whoever looks at its age.
        archive: What holds its bytes instead of a block file; None: a block file does.
        path: The block file, or the archive's stub.
    """

    __slots__ = (
        "_disk",
        "ahead_since",
        "allocated",
        "archive",
        "cache",
        "facts",
        "file",
        "index",
        "index_saved",
        "length",
        "messages",
        "path",
        "start_offset",
        "synced_allocated",
        "synced_length",
    )

    def __init__(
        self,
        directory: Path,
        start_offset: int,
        *,
        disk: Disk,
        cache: BlockCache,
        length: int = 0,
        allocated: int = 0,
        archive: Archive | None = None,
    ) -> None:
        self.path = directory / block_name(start_offset)
        self.start_offset = start_offset
        self.length = length
        self.allocated = allocated
        self.synced_length = length
        self.synced_allocated = -1
        self.messages = -1
        self.index: OffsetIndex | None = None
        self.index_saved = True
        self.facts: BlockFacts | None = None
        self.ahead_since: tuple[bool, float] | None = None
        self.file: File | None = None
        self.cache = cache
        self.archive: Archive | None = None
        self._disk = disk
        if archive is not None:
            self.use_archive(archive)

    @property
    def is_archived(self) -> bool:
        """Whether an archive holds its bytes."""
        return self.archive is not None

    def use_archive(self, archive: Archive) -> None:
        """Read from an archive from now on: its stub and zip are there, and have all bytes."""
        self.close()
        self.archive = archive
        self.path = ArchiveFiles.of(self.path).stub
        self.length = self.allocated = self.synced_length = archive.length
        self.messages = archive.messages
        self.facts = BlockFacts(archive.last_ms, archive.messages)

    def use_file(self) -> None:
        """Read from the block file from now on: it is there, and has all bytes."""
        self.close()
        self.archive = None
        self.path = ArchiveFiles.of(self.path).block

    @property
    def end_offset(self) -> int:
        """Where the block's last batch ends."""
        return self.start_offset + self.length

    @property
    def dirty(self) -> bool:
        """Whether bytes were appended that are not known to be durable."""
        return self.synced_length < self.length

    @property
    def index_path(self) -> Path:
        """Where the index is kept once the block is closed."""
        return self.path.with_suffix(INDEX_SUFFIX)

    def open(self, *, create: bool = False) -> File:
        """Return the open file, opening it if needed.

        Raises:
            OSError: It cannot be opened.
        """
        file = self.file
        if file is None:
            if self.archive is None:
                file = self._disk.open(self.path, create=create)
            else:
                cache = self.cache
                file = ArchivedFile(self._disk, self.path, cache.chunks, waits=cache.waits)
            self.file = file
            self.cache.opened(self)
        else:
            self.cache.used(self)
        return file

    def close(self) -> None:
        """Give the file back, and forget an index that can be loaded again."""
        if self.cache.closed(self):
            file, self.file = self.file, None
            if file is not None:
                file.close()
        if self.index_saved:
            self.index = None

    def allocate(self, length: int, wish: int) -> None:
        """Allocate space for ``length`` bytes, or for ``wish`` bytes if the disk has them.

        Raises:
            OSError: ENOSPC or EDQUOT: not even ``length`` bytes fit; nothing has changed.
        """
        file = self.open()
        start = self.allocated
        need = -(-length // _ALLOCATION_UNIT) * _ALLOCATION_UNIT
        wish = max(need, wish)
        try:
            file.allocate(start, wish - start)
        except OSError as error:
            if error.errno not in FULL_ERRNOS or wish == need:
                raise
            file.allocate(start, need - start)
            wish = need
        self.allocated = wish

    def cut_allocation(self) -> None:
        """Give back the space behind ``length``.

        Raises:
            OSError: As ``File.truncate``.
        """
        if self.allocated != self.length:
            self.open().truncate(self.length)
            self.allocated = self.length

    def view(self, position: int, length: int) -> memoryview:
        """Return ``length`` bytes from ``position`` on; the caller keeps within the block.

        Raises:
            NotInMemory: They are in an archive, and must be fetched first.
            OSError: The medium cannot deliver them.
        """
        return self._opened().view(position, length)

    def cold(self, position: int, length: int) -> Callable[[], None] | None:
        """Return a function that brings these bytes into memory, on any thread; None: no need.

        Raises:
            OSError: The file cannot be opened.
        """
        file = self._opened()
        if file.resident(position, length):
            return None
        if isinstance(file, ArchivedFile):
            return file.fetcher(position, length)
        return partial(fetch_stored, self._disk, self.path, position, length, self.cache.chunks)

    def stop(self, offset: int) -> int:
        """Return where one read from ``offset`` on ends: at the end of the block, or of a chunk.

        Raises:
            OSError: The archive cannot be opened.
        """
        if self.archive is None:
            return self.end_offset
        file = self._opened()
        assert isinstance(file, ArchivedFile)
        return self.start_offset + file.chunk_end(offset - self.start_offset)

    @property
    def piece(self) -> Piece:
        """All of the block, for who reads it beside the log."""
        place = "" if self.archive is None else place_of(self.archive.url)
        return Piece(self.path, self.start_offset, self.start_offset, self.end_offset, place)

    def _opened(self) -> File:
        file = self.file
        if file is None:
            file = self.open()
            self.cache.trim(self)
        else:
            self.cache.used(self)
        return file

    def headers(self, offset: int) -> Iterator[BatchHeader]:
        """Yield the header of every batch from ``offset``, the start of one, to the block's end.

        Raises:
            CorruptData: No batch begins at ``details["offset"]``.
            NotInMemory: As ``view``.
            OSError: The medium cannot deliver it.
        """
        start = self.start_offset

        def read(position: int, length: int) -> memoryview:
            return self.view(position, min(length, self.stop(start + position) - start - position))

        end, name = self.end_offset, self.path.name
        return read_headers(read, start, offset, end, name, size=_WALK_BYTES)

    def header_at(self, offset: int) -> BatchHeader:
        """Return the header of the batch that starts at ``offset``, which the block holds.

        Raises:
            CorruptData: Its control record is damaged.
            NotInMemory: As ``view``; never for the first one.
            OSError: The medium cannot deliver it.
        """
        if self.archive is not None and offset == self.start_offset:
            return self.archive.first
        return next(self.headers(offset))

    def load_index(self) -> OffsetIndex:
        """Return the index: the one at hand, the one beside the block, or one built from it.

        Raises:
            CorruptData: It must be built, and a batch of the block is damaged.
            NotInMemory: It must be built, which a lane does.
            OSError: The medium cannot deliver the block.
        """
        index = self.kept_index()
        if index is None:
            index, self.messages = self._build_index()
            self.index = index
        return index

    def kept_index(self) -> OffsetIndex | None:
        """Return the index at hand, or the one beside the block; None: it would have to be built.

        For an archive, which may lie elsewhere, of which the number of messages is known.
        """
        if self.index is None:
            with contextlib.suppress(OSError, CorruptData):
                self.index, self.messages = self._decode_index(
                    self._disk.read_bytes(self.index_path)
                )
        return self.index

    def _decode_index(self, data: bytes) -> tuple[OffsetIndex, int]:
        index, end, messages = OffsetIndex.from_bytes(data)
        if (index.start_offset, end) != (self.start_offset, self.end_offset):
            raise CorruptData(f"{self.index_path.name} covers something else")
        return index, messages

    def _build_index(self) -> tuple[OffsetIndex, int]:
        archive, cache = self.archive, self.cache
        if not cache.waits:
            key = (str(self.path) if archive is None else archive.zip_sha256), INDEX_NUMBER
            data = cache.chunks.get(key)
            if data is None:
                work = partial(_rebuild, self._disk, self.path, self.length, archive, cache.chunks)
                url = "" if archive is None else archive.url
                raise NotInMemory(self.index_path, Fetch(work, cache.chunks, [key], url))
            return self._decode_index(data)
        index = OffsetIndex(self.start_offset)
        messages = 0
        for header in self.headers(self.start_offset):
            index.maybe_add(header.start_offset, messages, header.append_time_ms)
            messages += header.record_count
        return index, messages

    def index_bytes(self) -> bytes:
        """Return the bytes of the index as it is now; ``load_index`` must have been called."""
        assert self.index is not None
        return self.index.to_bytes(end_offset=self.end_offset, messages=self.messages)


def _rebuild(
    disk: Disk, path: Path, length: int, archive: Archive | None, chunks: ChunkCache
) -> None:
    """Build the index of a block and keep it beside the block; in memory if that fails.

    Reads all of the block; an error is kept for whoever looks for the index next.
    """
    files = ArchiveFiles.of(path)
    start = parse_block_name(files.block.name)
    assert start is not None
    cache = BlockCache(waits=True)
    block = Block(path.parent, start, disk=disk, cache=cache, length=length, archive=archive)
    key = (str(path) if archive is None else archive.zip_sha256), INDEX_NUMBER
    try:
        block.load_index()
        data = block.index_bytes()
    except (CorruptData, OSError) as error:
        if disk.exists(path) or not disk.exists(files.stub):
            chunks.fail(key, error)
        return  # else it was archived meanwhile, with its index
    finally:
        cache.close_all()
    try:
        disk.write_atomic(block.index_path, data)
    except OSError as error:
        logger.warning("index of a block cannot be saved", path=block.index_path, error=error)
        chunks.put(key, data)
