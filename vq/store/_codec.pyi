from vq.model import Message

def encode_records(
    contents: list[bytes], heads: list[tuple[int, bytes] | None], ids: list[int], /
) -> tuple[bytes, list[int]]: ...
def decode_common(
    data: bytes,
    position: int,
    base: int,
    topic: str,
    partition: int,
    message: type[Message],
    tags: dict[bytes, str],
    out: list[Message],
    control_flag: int,
    control_size: int,
    /,
) -> int: ...
