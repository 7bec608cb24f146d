from collections.abc import Callable

from vq.model import Key, Message, SendResult
from vq.store.records.record import Record

def encode_records(
    contents: list[bytes], heads: list[tuple[int, bytes] | None], ids: list[int], /
) -> tuple[bytes, list[int]]: ...
def places(
    type: type[SendResult], partition: int, offset: int, sizes: list[int], ids: list[int], /
) -> list[SendResult]: ...
def decode_common(
    data: bytes,
    position: int,
    base: int,
    topic: str,
    partition: int,
    message: type[Message],
    tags: dict[bytes, str],
    out: list[Message],
    read_properties: Callable[[bytes], tuple[Key | None, dict[str, str] | None] | None],
    control_flag: int,
    control_size: int,
    times: list[int | None] | None = None,
    room: list[int] | None = None,
    decompress: Callable[[bytes, int], bytes] | None = None,
    corrupt: type[Exception] | None = None,
    /,
) -> int: ...
def decode_records(
    data: bytes,
    base: int,
    record: type[Record],
    out: list[Record],
    control_flag: int,
    control_size: int,
    /,
) -> int: ...
def decompress(payload: bytes, kind: int, /) -> bytes | None: ...
def intact(
    data: bytes | memoryview, position: int, control_flag: int, control_size: int, /
) -> int: ...
def well_formed(
    data: bytes,
    count: int,
    payload_max: int,
    tag_max: int,
    properties_max: int,
    flags_mask: int,
    /,
) -> tuple[int, int]: ...
