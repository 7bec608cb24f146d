"""Header messages as Hessian maps: what a JVM client may send, and what it gets."""

import pytest

from vq.errors import ProtocolError
from vq.hessian import encoding
from vq.hessian import plain as hessian
from vq.hessian.plain import Value
from vq.remoting import hessian_messages
from vq.remoting import wire_pb2 as wire


def put(**fields: Value) -> wire.PutRequest:
    """The PutRequest that a map of these fields stands for."""
    return hessian_messages.decode(wire.PutRequest, encoding.encode(fields))


def test_integers_are_always_longs() -> None:
    """A Java reader casts to Long, whatever the value."""
    data = hessian_messages.encode(wire.PutRequest(partition=3, sequence=2**40))
    assert data == b"H\x09partition\xe3\x08sequenceL" + (2**40).to_bytes(8, "big") + b"Z"


def test_int_and_long_are_both_read() -> None:
    """Whichever type the writer has."""
    assert put(partition=3, sequence=hessian.Long(4)) == put(partition=hessian.Long(3), sequence=4)


def test_java_may_show_unsigned_bits_as_a_negative_number() -> None:
    """A CRC in an int, a producer id in a long."""
    assert put(crc=-1).crc == 0xFFFF_FFFF
    assert put(crc=hessian.Long(0xFFFF_FFFF)).crc == 0xFFFF_FFFF
    assert put(producer_id=-(2**63)).producer_id == 2**63
    data = hessian_messages.encode(wire.PutRequest(producer_id=2**64 - 1))
    assert hessian.decode(data) == {"producer_id": -1}
    assert hessian_messages.decode(wire.PutRequest, data).producer_id == 2**64 - 1


def test_null_is_the_default() -> None:
    """As a Java object with an empty field would give."""
    assert put(topic=None, partition=None) == wire.PutRequest()


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"partition": "3"}, "field partition is str, not an integer"),
        ({"partition": True}, "field partition is bool, not an integer"),
        ({"partition": 3.0}, "field partition is float"),
        ({"partition": 2**32}, "partition = 4294967296 does not fit into 32 bits"),
        ({"partition": -(2**31) - 1}, "does not fit into 32 bits"),
        ({"topic": b"orders"}, "field topic is bytes, not str"),
        ({"topic": 5}, "field topic is int, not str"),
        ({"topic": ["orders"]}, "field topic is list"),
    ],
)
def test_a_field_of_another_type_is_refused(fields: dict[str, Value], text: str) -> None:
    """Named, with what it should be."""
    with pytest.raises(ProtocolError, match=text):
        put(**fields)


@pytest.mark.parametrize(
    ("cls", "fields", "text"),
    [
        (wire.GetRequest, {"tags": "a"}, "field tags is str, not a list"),
        (wire.GetRequest, {"tags": [5]}, "field tags is int, not str"),
        (wire.GetRequest, {"validate": 1}, "field validate is int, not bool"),
        (wire.GetResponse, {"offsets": [1, "2"]}, "field offsets is str"),
        (wire.SealResponse, {"producers": "text"}, "field producers is str, not bytes"),
        (wire.StatusResponse, {"partitions": ["x"]}, "field partitions is str, not a map"),
        (wire.Error, {"numbers": [1]}, "field numbers is list, not a map"),
        (wire.Error, {"numbers": {"a": 2**63 - 1, "b": "x"}}, "field value is str"),
    ],
)
def test_containers_are_checked_inside(
    cls: type[wire.GetRequest], fields: dict[str, Value], text: str
) -> None:
    """Lists, messages in lists, and maps."""
    with pytest.raises(ProtocolError, match=text):
        hessian_messages.decode(cls, encoding.encode(fields))


def test_a_name_with_a_zero_byte_is_another_name() -> None:
    """It is read over like any unknown one, not taken for what stands in front of the zero."""
    fields: dict[str, Value] = {"topic\x00": "a", "topic\x00x": 5, "topic": "b"}
    assert put(**fields) == wire.PutRequest(topic="b")


@pytest.mark.parametrize("value", [None, 5, "text", [], [{"topic": "t"}]])
def test_a_header_is_a_map(value: Value) -> None:
    """And nothing else."""
    with pytest.raises(ProtocolError, match="not a map"):
        hessian_messages.decode(wire.PutRequest, encoding.encode(value))
