"""Write the pages of states, docs/reference/{partition,node}-states.md, from their tables.

    python tools/states.py      write the files

Tests compare the committed files with `render()` and `render_node()`, so that no page can go stale.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path

from vq.broker.base.events import StateEvent
from vq.broker.partition.partition_state import (
    RULES,
    TRANSITIONS,
    ChannelEvent,
    ChannelState,
)
from vq.broker.standing.node_state import (
    NODE_RULES,
    NODE_TRANSITIONS,
    NodeEvent,
    NodeState,
)

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "reference" / "partition-states.md"
NODE_TARGET = ROOT / "docs" / "reference" / "node-states.md"

#: Events that lead from nearly every state to the same one: the table has them.
NOT_DRAWN: set[StrEnum] = {event for event in ChannelEvent if event.startswith("placed_")}
NOT_DRAWN |= {ChannelEvent.FAIL, ChannelEvent.OPEN_FAILED, ChannelEvent.CLOSE}

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

NODE_PREFACE = """\
# How a node stands in its group

This page is written by `make docs` from the tables in `vq/broker/standing/node_state.py`; a test
keeps it so. How far the end of the process is stands beside this: a node that stops may lead until
another one does.

A master acts only in an epoch that is stored on its disk. What it confirms counts as long as a
reply of ZooKeeper vouches for it, or all nodes in sync confirm it, too
([guarantees](../guarantees.md)).
"""

NODE_DIAGRAM = """\
## Diagram

Left out are `follow` and `wait`, which lead to `follows` and `waits` from every state, and events
that change nothing. The [table](#transitions) has them all.
"""

TABLE = """\
## Transitions

The next state, by state and event. An event that is missing in a row must not happen in that state:
the broker raises.
"""

Transitions = Mapping[StrEnum, Mapping[StrEnum, StrEnum]]


def _arrows(table: Transitions, first: StrEnum, not_drawn: set[StrEnum]) -> Iterator[str]:
    yield f"    [*] --> {first}"
    for state, row in table.items():
        labels: dict[StrEnum, list[str]] = {}
        for event, following in row.items():
            if event not in not_drawn and following is not state:
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
        if state is ChannelState.CLOSED:
            put = "the error that closed it"
        allowed = (rules.read, rules.seal, rules.adopt, rules.verify)
        marks = " | ".join(_mark(each) for each in allowed)
        yield f"| `{state}` | {rules.meaning} | `{rules.told}` | {put} | {marks} |"


def _node_states() -> Iterator[str]:
    yield "| state | meaning | what it confirms counts | a PUT is |"
    yield "| --- | --- | --- | --- |"
    for state, rules in NODE_RULES.items():
        yield f"| `{state}` | {rules.meaning} | {_mark(rules.acts)} | {rules.puts} |"


def _events(events: type[StateEvent]) -> Iterator[str]:
    yield "| event | meaning |"
    yield "| --- | --- |"
    for event in events:
        yield f"| `{event}` | {event.meaning} |"


def _transitions(table: Transitions, events: type[StrEnum]) -> Iterator[str]:
    yield "| state | event | next state |"
    yield "| --- | --- | --- |"
    for state, row in table.items():
        following: dict[StrEnum, list[str]] = {}
        for event in events:
            if event in row:
                following.setdefault(row[event], []).append(f"`{event}`")
        for after, found in following.items():
            yield f"| `{state}` | {', '.join(found)} | `{after}` |"


def render() -> str:
    """Return the whole page of a partition's states."""
    drawn = _arrows(TRANSITIONS, ChannelState.OPENING, NOT_DRAWN)
    parts = [
        PREFACE,
        "\n".join(["## States", "", *_states(), ""]),
        "\n".join(["## Events", "", *_events(ChannelEvent), ""]),
        "\n".join([DIAGRAM, "```mermaid", "stateDiagram-v2", *drawn, "```", ""]),
        "\n".join([TABLE, *_transitions(TRANSITIONS, ChannelEvent), ""]),
    ]
    return "\n".join(parts)


def render_node() -> str:
    """Return the whole page of a node's states."""
    everywhere: set[StrEnum] = {NodeEvent.FOLLOW, NodeEvent.WAIT}
    drawn = _arrows(NODE_TRANSITIONS, NodeState.UNREGISTERED, everywhere)
    parts = [
        NODE_PREFACE,
        "\n".join(["## States", "", *_node_states(), ""]),
        "\n".join(["## Events", "", *_events(NodeEvent), ""]),
        "\n".join([NODE_DIAGRAM, "```mermaid", "stateDiagram-v2", *drawn, "```", ""]),
        "\n".join([TABLE, *_transitions(NODE_TRANSITIONS, NodeEvent), ""]),
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    TARGET.write_text(render())
    NODE_TARGET.write_text(render_node())
