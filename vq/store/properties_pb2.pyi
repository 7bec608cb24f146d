from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class RecordProperties(_message.Message):
    __slots__ = ("key", "key_bytes", "key_int", "headers", "delivery_time_ms", "retry_count", "origin", "destination")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    KEY_FIELD_NUMBER: _ClassVar[int]
    KEY_BYTES_FIELD_NUMBER: _ClassVar[int]
    KEY_INT_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    RETRY_COUNT_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    key: str
    key_bytes: bytes
    key_int: int
    headers: _containers.ScalarMap[str, str]
    delivery_time_ms: int
    retry_count: int
    origin: str
    destination: str
    def __init__(self, key: _Optional[str] = ..., key_bytes: _Optional[bytes] = ..., key_int: _Optional[int] = ..., headers: _Optional[_Mapping[str, str]] = ..., delivery_time_ms: _Optional[int] = ..., retry_count: _Optional[int] = ..., origin: _Optional[str] = ..., destination: _Optional[str] = ...) -> None: ...
