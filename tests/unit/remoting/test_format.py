"""The numbers of the wire do not move."""

from vq.remoting import format as wire_format
from vq.remoting.format import Command


def test_the_prefix_is_twenty_bytes() -> None:
    """length, magic, version, flags, command, status, correlation id, header length."""
    packed = wire_format.PREFIX.pack(0x01020304, b"vq\x01", 5, 0x0607, 0x0809, 0x0A0B0C0D, 14)
    assert packed.hex(" ") == "01 02 03 04 76 71 01 05 06 07 08 09 0a 0b 0c 0d 00 00 00 0e"
    assert wire_format.LENGTH_OVERHEAD == 16


def test_commands_keep_their_numbers() -> None:
    """33 to 39 are reserved."""
    assert {command.name: command.value for command in Command} == {
        "HELLO": 1,
        "PING": 2,
        "STATUS": 3,
        "PROVE": 4,
        "AUTHENTICATE": 5,
        "PUT": 10,
        "GET": 11,
        "OFFSETS": 12,
        "FETCH": 13,
        "VERIFY": 14,
        "FIND": 15,
        "BLOCKS": 16,
        "CANCEL": 17,
        "SEAL": 20,
        "ADOPT": 21,
        "TRANSACT": 30,
        "FENCE": 31,
        "TRANSACTIONS": 32,
        "CHECK": 33,
        "REPLICATE": 40,
        "EPOCH_END": 41,
        "HAND_OVER": 42,
        "DIVERGED": 43,
        "REPAIR": 44,
        "ARCHIVE": 45,
        "RECEIVE": 50,
        "SETTLE": 51,
        "SHARED": 52,
    }
