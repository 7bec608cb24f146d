"""Descriptor sets of protobuf: a shop, and the bytes of a set by hand."""

from typing import Any

from google.protobuf import any_pb2, descriptor_pb2, message_factory, timestamp_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool

KIND = FieldDescriptorProto.Type


def shop() -> FileDescriptorProto:
    """Orders with lines, a state, a map, bytes, themselves, a time and anything."""
    file = FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency[:] = ["google/protobuf/timestamp.proto", "google/protobuf/any.proto"]
    states = file.enum_type.add(name="State")
    for number, name in enumerate(("NEW", "PAID")):
        states.value.add(name=name, number=number)
    order = file.message_type.add(name="Order")
    line = order.nested_type.add(name="Line")
    add_field(line, "article", 1, KIND.TYPE_STRING)
    add_field(line, "count", 2, KIND.TYPE_INT64)
    entry = order.nested_type.add(name="NotesEntry")
    entry.options.map_entry = True
    add_field(entry, "key", 1, KIND.TYPE_STRING)
    add_field(entry, "value", 2, KIND.TYPE_STRING)
    add_field(order, "number", 1, KIND.TYPE_UINT64)
    add_field(order, "lines", 2, KIND.TYPE_MESSAGE, ".shop.Order.Line", several=True)
    add_field(order, "state", 3, KIND.TYPE_ENUM, ".shop.State")
    add_field(order, "notes", 4, KIND.TYPE_MESSAGE, ".shop.Order.NotesEntry", several=True)
    add_field(order, "picture", 5, KIND.TYPE_BYTES)
    add_field(order, "former", 6, KIND.TYPE_MESSAGE, ".shop.Order")
    add_field(order, "sent", 7, KIND.TYPE_MESSAGE, ".google.protobuf.Timestamp")
    add_field(order, "more", 8, KIND.TYPE_MESSAGE, ".google.protobuf.Any")
    add_field(order, "flags", 9, KIND.TYPE_BOOL, several=True)
    return file


def add_field(
    message: Any, name: str, number: int, kind: Any, of: str = "", *, several: bool = False
) -> None:
    label = FieldDescriptorProto.LABEL_REPEATED if several else FieldDescriptorProto.LABEL_OPTIONAL
    message.field.add(name=name, number=number, type=kind, label=label, type_name=of or None)


def well_known() -> list[FileDescriptorProto]:
    found = []
    for each in (timestamp_pb2, any_pb2):
        file = FileDescriptorProto()
        each.DESCRIPTOR.CopyToProto(file)
        found.append(file)
    return found


def varint(value: int) -> bytes:
    found = b""
    while value > 127:
        found += bytes([value & 127 | 128])
        value >>= 7
    return found + bytes([value])


def packed(*files: FileDescriptorProto) -> bytes:
    return descriptor_pb2.FileDescriptorSet(file=files).SerializeToString()


#: Not in the order of imports, as other programs write it.
SHOP = packed(shop(), *well_known())


def order_class() -> Any:
    """The class as an application has it."""
    pool = DescriptorPool()
    for file in (*well_known(), shop()):
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
