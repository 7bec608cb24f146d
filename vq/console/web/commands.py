"""Which page of the console does what a command does. Pure."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Final

#: Parts of the address below the cluster, by the first words of a command; ``{}``: its next word.
PAGES_OF_COMMANDS: Final[Mapping[str, Sequence[str]]] = {
    "archive history": ("archive",),
    "archive run": ("archive",),
    "broker drain": ("brokers", "{}"),
    "broker remove": ("brokers", "{}", "remove"),
    "cluster settings": ("settings",),
    "cluster status": ("brokers",),
    "delayed list": ("delayed",),
    "dlq list": ("dead-letters",),
    "dlq read": ("dead-letters", "{}"),
    "dlq resend": ("dead-letters", "{}", "resend"),
    "group describe": ("groups", "{}"),
    "group forget": ("groups", "{}"),
    "group history": ("groups", "{}"),
    "group list": ("groups",),
    "group plan": ("groups", "{}", "plan"),
    "group reset": ("groups", "{}", "reset"),
    "group shared": ("groups", "{}", "shared"),
    "message find": ("topics", "{}", "messages"),
    "topic alter": ("topics", "{}", "settings"),
    "topic create": ("topics", "create"),
    "topic delete": ("topics", "{}", "delete"),
    "topic describe": ("topics", "{}"),
    "topic list": ("topics",),
    "topic open": ("topics", "{}"),
    "topic undelete": ("topics",),
    "tx commit": ("transactions", "{}"),
    "tx list": ("transactions",),
    "tx rollback": ("transactions", "{}"),
    "tx show": ("transactions", "{}"),
}


def page_of(command: str) -> tuple[str, ...]:
    """Return the parts of the address of the page that does what a command does; (): none does.

    A command whose name is still to be filled in, such as ``vq topic alter TOPIC``, has no page.
    """
    try:
        words = shlex.split(command)
    except ValueError:
        return ()
    if len(words) < 3 or words[0] != "vq":
        return ()
    found = PAGES_OF_COMMANDS.get(f"{words[1]} {words[2]}", ())
    if "{}" not in found:
        return tuple(found)
    name = words[3] if len(words) > 3 else "-"
    if name.startswith("-") or name in ("TOPIC", "GROUP"):
        return ()
    return tuple(name if each == "{}" else each for each in found)
