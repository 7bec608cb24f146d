"""An answer: the first cause of a table that the facts show, what it rests on, what is not known.

A question has one table of causes, in the order in which they are told. Each says of the facts that
it holds, that it does not, or that a fact is not known. Nothing is guessed: a cause that a fact is
missing for is told as not ruled out, and where it stands before the cause that was found, the
answer is not certain. Pure.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from vq.errors import InvalidState

F = TypeVar("F")
#: The cause where what could be asked shows none, and something could not be asked.
NOT_KNOWN: Final = "not_known"


@dataclass(frozen=True, slots=True)
class ExplainedFact:
    """A fact that an answer rests on; ``value`` is None if it is not known."""

    name: str
    value: str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause that the facts show.

    Attributes:
        cause: In one word, for programs.
        text: For people.
        commands: The ``vq`` commands that mend it, or that show more; empty: there is none.
    """

    cause: str
    text: str
    commands: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The answer to one question.

    Attributes:
        question: ``partition``, ``key``, ``message``, ``disk`` or ``send``.
        subject: What was asked about, for people.
        found: The cause.
        is_certain: All causes that stand before it in the table are ruled out.
        also: Further causes that the facts show.
        open: The causes that could not be ruled out, since a fact is not known.
        facts: What the answer rests on.
        unknown: What could not be asked, and why.
    """

    question: str
    subject: str
    found: Cause
    is_certain: bool
    also: tuple[Cause, ...]
    open: tuple[str, ...]
    facts: tuple[ExplainedFact, ...]
    unknown: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseRow(Generic[F]):
    """A row of a table of causes.

    Attributes:
        cause: In one word.
        holds: Whether the facts show it; None: one that it needs is not known.
        text: What it is, for people: a function of the facts, or a text with ``{f.name}`` for what
            the facts say.
        commands: What mends it; the same.
        is_rest: It says that nothing is wrong: an answer only where no other cause holds.
    """

    cause: str
    holds: Callable[[F], bool | None]
    text: Callable[[F], str] | str
    commands: Callable[[F], Sequence[str]] | Sequence[str] = ()
    is_rest: bool = False

    def of(self, facts: F) -> Cause:
        """Return the cause, with what the facts say of it."""
        text, commands = self.text, self.commands
        return Cause(
            self.cause,
            text.format(f=facts) if isinstance(text, str) else text(facts),
            tuple(commands(facts))
            if callable(commands)
            else tuple(each.format(f=facts) for each in commands),
        )


def explain(
    question: str,
    subject: str,
    table: Sequence[CauseRow[F]],
    facts: F,
    told: Sequence[ExplainedFact],
    unknown: Sequence[str] = (),
) -> Explanation:
    """Return the answer that a table gives for some facts.

    Args:
        question, subject: As in ``Explanation``.
        table: The causes in their order; one with ``is_rest`` holds if none of the others does.
        facts: What the table reads.
        told: The facts for people.
        unknown: What could not be asked, and why.

    Raises:
        InvalidState: The table has no answer.
    """
    judged = [(row, row.holds(facts)) for row in table]
    shown = [row for row, holds in judged if holds]
    if not shown:
        raise InvalidState(f"no cause of {question!r} fits the facts {facts!r}")
    first = shown[0]
    open_before = [row.cause for row, holds in judged[: table.index(first)] if holds is None]
    found = first.of(facts)
    if first.is_rest and open_before:
        found = Cause(
            NOT_KNOWN,
            "what could be asked shows no cause, and not everything could be asked; as far as is "
            f"known: {found.text}",
            ("vq doctor", *found.commands),
        )
    return Explanation(
        question=question,
        subject=subject,
        found=found,
        is_certain=not open_before,
        also=tuple(row.of(facts) for row in shown[1:] if not row.is_rest),
        open=tuple(row.cause for row, holds in judged if holds is None),
        facts=tuple(told),
        unknown=tuple(unknown),
    )
