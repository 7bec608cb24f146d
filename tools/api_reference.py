"""Write docs/reference/api.md, errors.md and operations.md from the code.

    python tools/api_reference.py      write the files

A test compares the committed files with ``PAGES``, so that they stay fresh. The text of a name is
its docstring; the prefaces here have what no docstring can say.
"""

import dataclasses
import enum
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import vq
from vq import admin, aio, columns, datamanager, local, opentelemetry, serializers, testing
from vq import errors as vq_errors
from vq.coordination.brokers import registry
from vq.coordination.groups import groups
from vq.coordination.leases import slots
from vq.coordination.security import users as stored_users
from vq.coordination.topics import topics
from vq.coordination.tree import coordinator
from vq.errors import InvalidArgument, InvalidState, OutcomeUnknown, Refused, VqError
from vq.operations.archives import archive_runs
from vq.operations.base import changes, connect
from vq.operations.brokers import draining
from vq.operations.cluster import settings
from vq.operations.operation import Awaited, rows_of
from vq.operations.security import access, quotas, users
from vq.operations.table import Operations

REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "reference"

API_PREFACE = """\
# The Python API

This page is written by `make docs` from the code; a test keeps it so. What is listed here is
public: it changes only as [CHANGELOG.md](../../CHANGELOG.md) promises. Everything else in the
package may change at any time.

`vq` is for blocking code, from any number of threads. `vq.aio` has the same as coroutines, for one
event loop. Settings, messages, results and errors are the same objects in both. `vq.admin` has what
`factory.admin` of both takes and returns, `vq.columns` has stored messages as columns,
`vq.local` has a queue inside one process, `vq.serializers` makes contents of objects,
`vq.testing` has clusters inside one process for tests,
`vq.opentelemetry` traces messages (it needs the extra `vq[opentelemetry]`), `vq.datamanager` joins
transactions of the package `transaction` (the extra `vq[transaction]`). Errors are on
[a page of their own](errors.md), and the numbers of a producer,
too
([producer-metrics.md](producer-metrics.md)).

A factory that is open must not be carried across a fork: its methods raise `InvalidState` in the
child. Open a factory in each process.
"""

ERRORS_PREFACE = """\
# Errors

This page is written by `make docs` from `vq/errors.py`; a test keeps it so.

Every error of vq is a `vq.VqError`. Its class says what can be done; its text is for people and may
change. Below a traceback stands what to do: the `hint` of the error, unless its text says the same.

| the class is a | was it done? | what a caller does |
| --- | --- | --- |
| `vq.Refused` | certainly not | if `retriable`, try again later; else correct the cause |
| `vq.OutcomeUnknown` | perhaps | look, or accept that a further try may do it twice |
| `vq.InvalidArgument`, `vq.InvalidState` | no | correct the program |
| any other `vq.VqError` | the message says | correct the cause, which the message names |

All have the attributes `retriable`, `refresh_routes`, `hint`, `status` and `details` (facts for
programs, such as `earliest` and `latest` of an offset that is out of range). The client tries again
by itself, until the deadline of the call, whatever is retriable; an application sees such an error
only when the time is up.

*Status* is the number on the wire ([protocol](../protocol.md)); a class without one never travels.
*Retriable*: the same thing may succeed later. *Refresh*: the picture of the cluster was old; it is
read again before the next try.

The classes that have no name in `vq` itself are in `vq.errors`.
"""

OPERATIONS_PREFACE = """\
# Operations

This page is written by `make docs` from `vq/operations/table.py`; a test keeps it so.

What an administrator asks and changes, with [`vq.Admin` and `vq.aio.Admin`](api.md) or with
[a command](cli.md). An operation that *plans* says what another one would do, and changes nothing.
*Needs* is the right that the operation needs, and on what: on the topics or groups that the
argument in brackets names; without one, on all.
[The web console](../howto/use-the-console.md#who-may-do-what) checks it by the role of an account,
[the HTTP gateway](http-gateway.md) by the rights of a token, and brokers check what they are asked
by [rules of access](../howto/rules.md). Programs and commands that read the cluster's secret in
ZooKeeper are above these.

| operation | does | needs | command |
| --- | --- | --- | --- |
"""

PUBLIC = (
    ("vq", vq),
    ("vq.aio", aio),
    ("vq.admin", admin),
    ("vq.columns", columns),
    ("vq.local", local),
    ("vq.serializers", serializers),
    ("vq.opentelemetry", opentelemetry),
    ("vq.datamanager", datamanager),
    ("vq.testing", testing),
)

_MODULES = re.compile(r"\b(?:vq(?:\.[a-z_]+)+|collections\.abc|typing|types)\.(?=[A-Z])")
_ENUM = re.compile(r"<(\w+\.\w+): [^>]*>")
#: A class inside an annotation that is named before it is there.
_FORWARD = re.compile(r"(?:ForwardRef\()?'([A-Z]\w*(?:\[[^']*\])?)'\)?")
#: Begins what a docstring says to other parts of vq only: a method with it is left out, and so is
#: all that follows it in the text of a class.
_INTERNAL = re.compile(r"\bFor (the sender|the factory|vq) only\b")
_SECTIONS = ("Args:", "Raises:", "Returns:", "Attributes:")


#: Names for annotations, which have no docstring.
ALIASES = {
    "Key": "A message's key: text, bytes, or an integer in [-2**63, 2**63).",
    "Listener": "What `subscribe` takes: a function of a message.",
    "Moment": "A time with its zone, or an end of what can be read; see `offset_at`.",
    "Position": "An offset, a time with its zone, or an end of what can be read; see `seek`.",
    "SendCallback": "What `send_async` takes: a function of the result and the error, one of them "
    "None.",
}


def _shown_alias(subject: Any) -> str:
    named = (
        re.sub(r"<class '(.*?)'>", r"\1", str(subject)).replace("typing.", "").replace("|", "\\|")
    )
    return _united(_MODULES.sub("", named.replace("\\|", "|")))


def _united(text: str) -> str:
    """Write unions as Python 3.14 does, whichever it is: ``A | B`` for ``Union[A, B]``."""
    union = re.search(r"(?:typing\.)?\bUnion\[", text)
    if union is None:
        return text
    depth, parts, begin = 0, [], union.end()
    for at in range(begin, len(text)):
        if depth == 0 and text[at] in ",]":
            parts.append(text[begin:at].strip())
            begin = at + 1
            if text[at] == "]":
                break
        depth += (text[at] == "[") - (text[at] == "]")
    return _united(text[: union.start()] + " | ".join(parts) + text[begin:])


# Text ---------------------------------------------------------------------------------------------
def text_of(subject: Any) -> str:
    """Return a docstring as Markdown: its sections become lists, its examples code."""
    lines: list[str] = []
    section, example = "", False
    for line in inspect.cleandoc(subject.__doc__ or "").splitlines():
        if line in _SECTIONS:
            lines += [f"**{line.removesuffix(':')}**", ""]
            section, example = line, False
        elif line and not line.startswith(" "):
            section = ""
            example = line.endswith("::")
            lines.append(line.removesuffix("::") + ":" if example else line)
        elif section == "Returns:" and line:
            lines.append(line.strip())  # a text, and no list of names
        elif section and line.startswith("    ") and not line.startswith("     "):
            name, colon, rest = line.strip().partition(": ")
            lines.append(f"- `{name}`: {rest}" if colon else f"- {line.strip()}")
        elif section and line:
            lines.append(f"  {line.strip()}")
        else:
            lines.append(line)
    return re.sub(r"``([^`]+)``", r"`\1`", "\n".join(lines)).strip()


def signature_of(name: str, subject: Any) -> str:
    """Return ``name(arguments) -> result`` without module names."""
    signature = inspect.signature(subject)
    shown = [
        each.replace(annotation=_bare(each.annotation))
        for each in signature.parameters.values()
        if each.name != "self"
    ]
    signature = signature.replace(
        parameters=shown, return_annotation=_bare(signature.return_annotation)
    )
    text = _united(_FORWARD.sub(r"\1", f"{name}{signature}").replace("~", ""))
    return _ENUM.sub(r"\1", _MODULES.sub("", text)).replace("'", '"')


class _Bare(str):
    """An annotation that is written as a text: it is shown without quotes, a default with them."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _bare(annotation: Any) -> Any:
    return _Bare(annotation) if isinstance(annotation, str) else annotation


def default_of(item: "dataclasses.Field[Any]") -> str:
    """Return a field's default as one would write it."""
    if item.default is not dataclasses.MISSING:
        value = item.default
        value = value.value if isinstance(value, enum.Enum) else value
        return "`" + repr(value).replace("'", '"') + "`"
    made = item.default_factory
    return "required" if made is dataclasses.MISSING else f"`{getattr(made, '__name__', made)}()`"


# The API ------------------------------------------------------------------------------------------
def described(cls: type) -> tuple[str, str]:
    """Return a class's text, and a table of its fields if it has some.

    The table has the texts of the fields under ``Attributes``.
    """
    text = _INTERNAL.split(text_of(cls))[0].rstrip()
    fields = _fields(cls)
    if not fields:
        return text, ""
    text, _, attributes = text.partition("**Attributes**")
    flat = re.sub(r"\n  (?=\S)", " ", attributes)
    meanings: dict[str, str] = {}
    for names, meaning in re.findall(r"^- `([\w, ]+)`: (.*)$", flat, re.MULTILINE):
        meanings |= dict.fromkeys(names.split(", "), meaning)
    head = ["| field | default | meaning |", "| --- | --- | --- |"]
    if not meanings:
        head = ["| field | default |", "| --- | --- |"]
    rows = [
        f"| `{name}` | {default} |"
        + (f" {meanings.get(name, '').replace('|', '/')} |" if meanings else "")
        for name, default in fields
    ]
    return text.strip(), "\n".join([*head, *rows])


def _fields(cls: type) -> list[tuple[str, str]]:
    if dataclasses.is_dataclass(cls):
        return [(each.name, default_of(each)) for each in dataclasses.fields(cls) if each.init]
    defaults = getattr(cls, "_field_defaults", {})
    return [
        (name, f"`{defaults[name]!r}`" if name in defaults else "required")
        for name in getattr(cls, "_fields", ())
    ]


def methods_of(cls: type) -> Iterator[str]:
    """Yield a section for each public method and property, in the order of the class."""
    for name, member in vars(cls).items():
        if name.startswith("_") or _INTERNAL.search(getattr(member, "__doc__", None) or ""):
            continue
        if isinstance(member, property):
            yield f"#### `{name}`\n\n{text_of(member)}"
        elif isinstance(member, classmethod | staticmethod):
            shown = signature_of(name, getattr(cls, name))
            yield f"#### `{cls.__name__}.{shown}`\n\n{text_of(member.__func__)}"
        elif inspect.isfunction(member):
            word = "await " if inspect.iscoroutinefunction(member) else ""
            text = f"See `vq.Admin.{name}`." if issubclass(cls, Awaited) else text_of(member)
            yield f"#### `{word}{signature_of(name, member)}`\n\n{text}"


def section_of(module: str, name: str, subject: Any) -> str:
    """Return the section of one public name."""
    title = f"### `{module}.{name}`"
    if name in ALIASES:
        return f"{title}\n\n{ALIASES[name]}\n\n`{name} = {_shown_alias(subject)}`\n"
    if inspect.isfunction(subject):
        return f"{title}\n\n`{signature_of(name, subject)}`\n\n{text_of(subject)}\n"
    if not inspect.isclass(subject) and not isinstance(subject, str):
        return f"{title}\n\n`{subject!r}`\n"
    if not inspect.isclass(subject):
        return f"{title}\n\nThe version of the package, a text.\n"
    if issubclass(subject, VqError):
        return f"{title}\n\n{text_of(subject)}\n\nSee [errors](errors.md).\n"
    parts = [title, *described(subject)]
    if issubclass(subject, enum.Enum):
        parts.append("\n".join(f"- `{name}.{each.name}`: `{each.value!r}`" for each in subject))
    parts += methods_of(subject)
    return "\n\n".join(part for part in parts if part) + "\n"


def names_of(module: ModuleType) -> list[str]:
    """Return the public names, those that a user needs first at the beginning."""
    first = ["MessageFactory", "MessageProducer", "MessageConsumer", "Message", "SendResult"]
    return sorted(module.__all__, key=lambda name: (name not in first, name))


def api() -> str:
    """Return docs/reference/api.md."""
    parts = [API_PREFACE]
    for title, module in PUBLIC:
        about = text_of(module).partition("\n\nIn here:")[0]  # behind it, for the project itself
        parts.append(f"## {title}\n\n{about}\n")
        parts += [section_of(title, name, getattr(module, name)) for name in names_of(module)]
    return "\n".join(parts)


#: Modules with errors of their own that reach an application.
OTHER_ERRORS = (
    *(archive_runs, changes, draining, settings, access, quotas, users, connect),
    *(coordinator, groups, registry, slots, stored_users, topics),
)
OTHER_ERRORS_PREFACE = """
These are about ZooKeeper, or about a change by an operator. They come from `publish`, `commit`,
`start` and `vq.admin`. A send raises `NotSent` instead. A program catches the class in the second
column; the first one is the name that a log, or `--json`, shows.
"""
COMMAND_ERRORS = """
With `--json` the `vq` command has two more names. Wrong usage has the name of its class in click,
such as `UsageError`; an error of the system has the name of its class in Python, such as
`FileNotFoundError`.

| name | outcome | what it is about |
| --- | --- | --- |
| CommandFailed | `failed`; of `vq produce` `unknown` if any line is, else `refused` | the command \
did its work and found a failure; its results are printed. `vq produce`: `retriable` if every line \
that was not acknowledged is; `details` has the counts and, as `failures`, the lines by error |
| Interrupted | `unknown` | ctrl-C, SIGTERM or SIGHUP ended the command. As an error of a line: it \
was sent, and nobody waited for its outcome |
"""


# Errors -------------------------------------------------------------------------------------------
def outcome_of(cls: type[VqError]) -> str:
    """Return the answer to the question "was it done?"."""
    if issubclass(cls, OutcomeUnknown):
        return "perhaps"
    return "no" if issubclass(cls, Refused | InvalidArgument | InvalidState) else "–"


def errors() -> str:
    """Return docs/reference/errors.md."""
    classes = [
        each
        for each in vars(vq_errors).values()
        if inspect.isclass(each) and issubclass(each, VqError) and each is not VqError
    ]
    rows = [
        f"| {'' if cls.status is None else cls.status} | {cls.__name__} | {outcome_of(cls)} "
        f"| {'yes' if cls.retriable else ''} | {'yes' if cls.refresh_routes else ''} "
        f"| {_meaning(cls)} |"
        for cls in sorted(classes, key=lambda each: (each.status is None, each.status or 0))
    ]
    head = [
        "| status | class | was it done? | retriable | refresh | what it is about, or what to do |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    others = [
        f"| {name} | `{caught_as(cls)}` | {outcome_of(cls)} "
        f"| {'yes' if cls.retriable else ''} | {_meaning(cls)} |"
        for module in OTHER_ERRORS
        for name, cls in vars(module).items()
        if _is_error_of(cls, module)
    ]
    other_head = [
        "| class | catch | was it done? | retriable | what it is about, or what to do |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines = [
        *(ERRORS_PREFACE, *head, *rows),
        *(OTHER_ERRORS_PREFACE, *other_head, *others),
        COMMAND_ERRORS,
    ]
    return "\n".join(lines)


def caught_as(cls: type[VqError]) -> str:
    """Return the public name by which an application catches an error: its own, or a base's."""
    for each in cls.__mro__:
        for module in (vq, admin, vq_errors):
            if getattr(module, each.__name__, None) is each:
                return f"{module.__name__}.{each.__name__}"
    raise LookupError(f"{cls.__name__} has no public base")


def _is_error_of(cls: object, module: ModuleType) -> bool:
    """Whether a name of a module is an error class that the module makes for others."""
    if not inspect.isclass(cls) or not issubclass(cls, VqError):
        return False
    return cls.__module__ == module.__name__ and not cls.__name__.startswith("_")


def _meaning(cls: type[VqError]) -> str:
    own = cls.hint if "hint" in vars(cls) else ""
    if not own:
        own = inspect.cleandoc(vars(cls).get("__doc__") or "").splitlines()[0]
    return re.sub(r"``([^`]+)``", r"`\1`", own).replace("|", "\\|")


# Operations ---------------------------------------------------------------------------------------
def operations() -> str:
    """Return docs/reference/operations.md."""
    rows = [
        f"| `{each.name}` | {each.effect} | {each.right} {each.resource}"
        f"{f' (`{each.concerned}`)' if each.concerned else ''} "
        f"| {f'`vq {each.command}`' if each.command else ''} |"
        for each in rows_of(Operations)
    ]
    return OPERATIONS_PREFACE + "\n".join(rows) + "\n"


PAGES = {"api.md": api, "errors.md": errors, "operations.md": operations}

if __name__ == "__main__":
    REFERENCE.mkdir(parents=True, exist_ok=True)
    for name, write in PAGES.items():
        (REFERENCE / name).write_text(write())
