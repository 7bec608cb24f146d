"""Write docs/reference/partition-states.md from vq/broker/partition/partition_state.py.

    python tools/partition_states.py      write the file

A test compares the committed file with `render()`, so that the page cannot go stale.
"""

from collections.abc import Iterator
from pathlib import Path

from vq.broker.partition.partition_state import EVENTS, RULES, TRANSITIONS, Event, State

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "reference" / "partition-states.md"

#: Events that lead from nearly every state to the same one: the table has them.
NOT_DRAWN = {event for event in Event if event.startswith("placed_")}
NOT_DRAWN |= {Event.FAIL, Event.OPEN_FAILED, Event.CLOSE}

PREFACE = """\
# States of a partition on its broker

This page is written by `make docs` from the tables in `vq/broker/partition/partition_state.py`; a
test keeps it so. [What an operator does in which state](../howto/bring-back-a-partition.md).

Each partition of which a broker holds a part is in one of these states. The broker looks at the
placement first, then at what is special about the open log: `placed_…` comes before `…_found`, and
nothing is answered in between.
"""

DIAGRAM = """\
## Diagram

Left out are `fail`, `open_failed` and `close`, which lead to `failed`, `unreadable` and `closed`
from every state that has not ended; the events `placed_…`, which lead to the state that they name;
and events that change nothing. The [table](#transitions) has them all.
"""

TABLE = """\
## Transitions

The next state, by state and event. An event that is missing in a row must not happen in that state:
the broker raises.
"""


def _arrows() -> Iterator[str]:
    yield f"    [*] --> {State.OPENING}"
    for state, row in TRANSITIONS.items():
        labels: dict[State, list[str]] = {}
        for event, following in row.items():
            if event not in NOT_DRAWN and following is not state:
                labels.setdefault(following, []).append(event)
        for following, events in labels.items():
            yield f"    {state} --> {following}: {', '.join(events)}"


def _mark(allowed: bool) -> str:
    return "yes" if allowed else "–"


def _states() -> Iterator[str]:
    yield "| state | meaning | STATUS tells | PUT | reads | SEAL | ADOPT | VERIFY |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for state, rules in RULES.items():
        put = "yes" if rules.refusal is None else f"`{rules.refusal.__name__}`"
        if state is State.CLOSED:
            put = "the error that closed it"
        allowed = (rules.read, rules.seal, rules.adopt, rules.verify)
        marks = " | ".join(_mark(each) for each in allowed)
        yield f"| `{state}` | {rules.meaning} | `{rules.told}` | {put} | {marks} |"


def _events() -> Iterator[str]:
    yield "| event | meaning |"
    yield "| --- | --- |"
    for event, meaning in EVENTS.items():
        yield f"| `{event}` | {meaning} |"


def _transitions() -> Iterator[str]:
    yield "| state | event | next state |"
    yield "| --- | --- | --- |"
    for state, row in TRANSITIONS.items():
        following: dict[State, list[str]] = {}
        for event in Event:
            if event in row:
                following.setdefault(row[event], []).append(f"`{event}`")
        for after, events in following.items():
            yield f"| `{state}` | {', '.join(events)} | `{after}` |"


def render() -> str:
    """Return the whole page."""
    parts = [
        PREFACE,
        "\n".join(["## States", "", *_states(), ""]),
        "\n".join(["## Events", "", *_events(), ""]),
        "\n".join([DIAGRAM, "```mermaid", "stateDiagram-v2", *_arrows(), "```", ""]),
        "\n".join([TABLE, *_transitions(), ""]),
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    TARGET.write_text(render())
