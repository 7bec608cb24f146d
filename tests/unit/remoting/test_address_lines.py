"""Lines of addresses."""

from vq.remoting.address_lines import AddressLines


def test_addresses_take_turns() -> None:
    lines: AddressLines[str] = AddressLines(10)
    for number in range(4):
        assert lines.add("a", f"a{number}") is None
    lines.add("b", "b0")
    assert [lines.take() for _ in range(len(lines))] == ["a0", "b0", "a1", "a2", "a3"]
    assert len(lines) == 0


def test_at_the_bound_the_last_of_the_longest_line_goes() -> None:
    """So a flood from one address ends none that waits from another one."""
    lines: AddressLines[int] = AddressLines(3)
    assert [lines.add("a", number) for number in range(5)] == [None, None, None, 3, 4]
    assert lines.add("b", 10) == 2
    assert lines.add("c", 20) == 1
    assert [lines.take() for _ in range(3)] == [0, 10, 20]
    assert lines.add("a", 1) is None
