"""The order of causes, and what is not known."""

from support.explained import asked

from vq.operations.explain.answers import NOT_KNOWN, CauseRow


def row(cause: str, holds: bool | None, *, is_rest: bool = False) -> CauseRow[None]:
    return CauseRow(
        cause=cause, holds=lambda _: holds, text=lambda _: f"it is {cause}", is_rest=is_rest
    )


def test_the_first_cause_that_holds_is_the_answer_and_others_stand_beside_it() -> None:
    table = [row("a", False), row("b", True), row("c", True), row("rest", True, is_rest=True)]
    found = asked(table, None)
    assert (found.found.cause, [each.cause for each in found.also]) == ("b", ["c"])
    assert found.is_certain


def test_a_cause_before_the_answer_that_is_not_known_makes_it_uncertain() -> None:
    found = asked([row("a", None), row("b", True)], None, "broker b1 is silent")
    assert (found.found.cause, found.is_certain, found.open) == ("b", False, ("a",))
    behind = asked([row("b", True), row("a", None)], None)
    assert (behind.is_certain, behind.open) == (True, ("a",))


def test_nothing_is_wrong_only_if_everything_else_is_ruled_out() -> None:
    table = [row("a", None), row("rest", True, is_rest=True)]
    found = asked(table, None)
    assert (found.found.cause, found.is_certain) == (NOT_KNOWN, False)
    assert "it is rest" in found.found.text
