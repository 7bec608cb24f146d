"""Exit codes, and the text on standard error, of exceptions.

0    ok
1    failed: refused, unknown outcome, or an error of the system
2    usage: an unusable flag, argument or setting
129  interrupted with SIGHUP: the terminal went away
130  interrupted with ctrl-C
141  the reader of our output closed it
143  interrupted with SIGTERM
"""

import difflib
import errno
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

import click

from vq.cli.base import signals, text
from vq.coordination.tree.coordinator import ConnectionLost, NotConnected
from vq.devtools.errors import ChildFailed
from vq.errors import InvalidArgument, OutcomeUnknown, Refused, VqError, advice_of

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_BROKEN_PIPE = 141

_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

#: How the advice to create a topic begins.
_CREATE: Final = "create it: "

#: What it had done by then, its results say.
_INTERRUPTED_JSON = text.json_text(
    {
        "error": "Interrupted",
        "outcome": "unknown",
        "message": "interrupted",
        "hint": "",
        "retriable": False,
        "details": {},
    }
)


class CommandFailed(VqError):
    """A command did its work and found a failure; its results are printed, the message says why.

    Args:
        message: Why.
        outcome: ``refused``, ``unknown`` or ``failed``, of all that the command did.
        retriable: The same command may succeed later.
        facts: Counts and the like, the details with ``--json``.
    """

    def __init__(
        self,
        message: str,
        *,
        outcome: str = "failed",
        retriable: bool = False,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.may_succeed_later = retriable
        self.facts = dict(facts or {})


def check_readable(what: str, unreadable: Mapping[str, VqError]) -> None:
    """Fail, after the others were shown, if some topics or groups cannot be read.

    Raises:
        CommandFailed: It names them, each with its reason.
    """
    if unreadable:
        reasons = "; ".join(f"{name}: {error}" for name, error in unreadable.items())
        raise CommandFailed(
            f"{len(unreadable)} {what}(s) cannot be read and are left out: {reasons}",
            facts={"unreadable": list(unreadable)},
        )


def check_known_ids(ids: Collection[int], known: Collection[int], where: str) -> None:
    """Fail, after what was done with the others is shown, if nothing has some of the given ids.

    Args:
        ids: As given.
        known: Those that there are.
        where: What was looked through, and the command that lists it.

    Raises:
        CommandFailed: It names the unknown ones.
    """
    if unknown := [str(each) for each in dict.fromkeys(ids) if each not in known]:
        raise CommandFailed(
            f"no message with id {', '.join(unknown)} {where}", facts={"unknown_ids": unknown}
        )


def outcome(error: VqError) -> str:
    """Return which of the three outcomes an error stands for."""
    if isinstance(error, CommandFailed):
        return error.outcome
    cut = isinstance(error, ConnectionLost) and not isinstance(error, NotConnected)
    if cut or isinstance(error, OutcomeUnknown):
        return "unknown"
    return "refused" if isinstance(error, Refused) else "failed"


def as_json_text(error: Exception, message: str, hint: str = "") -> str:
    """Return an error as one JSON object; only errors of vq have more than a message."""
    known = error if isinstance(error, VqError) else None
    retriable = known is not None and known.retriable
    details: Mapping[str, Any] = {} if known is None else known.details
    if isinstance(error, CommandFailed):
        retriable, details = error.may_succeed_later, error.facts
    return text.json_text(
        {
            "error": type(error).__name__,
            "outcome": "failed" if known is None else outcome(known),
            "message": message,
            "status": None if known is None else known.status,
            "hint": hint,
            "retriable": retriable,
            "details": details,
        },
        ascii_only=True,
    )


def describe(error: VqError, *, as_json: bool) -> str:
    """Return the text for standard error: message and hint, or one JSON object."""
    if as_json:
        return as_json_text(error, error.message, error.hint)
    label = "outcome unknown" if outcome(error) == "unknown" else "error"
    shown = str(error)
    show = text.safe_lines if isinstance(error, ChildFailed) else text.safe
    lines = [f"{label}: {show(shown)}"]
    if advice := advice_of(error):
        lines.append(f"  what to do: {text.safe(advice)}")
    return "\n".join(lines)


def name_topic(error: VqError, topic: str) -> None:
    """Give the hint of an error the name of the topic that the command is about."""
    error.hint = error.hint.replace("topic describe NAME", f"topic describe {topic}").replace(
        "topic create NAME", f"topic create {topic}"
    )


def name_nearest_topic(
    error: VqError, topic: str, known: Sequence[str], *, may_be_new: bool = True
) -> None:
    """Let the hint of an error name the topic that a misspelt name may mean.

    The advice to create the topic is left out then, and where a new topic would be of no use.
    """
    if topic in known or "vq topic list" in error.hint:
        return  # it is not ready, or to be brought back, and the hint says so
    near = difflib.get_close_matches(topic, known, n=1)
    if not near and (may_be_new or not error.hint.startswith(_CREATE)):
        return
    error.args = (error.message.partition(f"; {_CREATE}")[0],)
    meant = "".join(f"did you mean {each!r}? " for each in near)
    error.hint = f"{meant}`vq topic list` shows all topics"


def name_nearest_group(error: VqError, group: str, known: Sequence[str]) -> None:
    """Let the hint of an error name the consumer group that a misspelt name may mean."""
    for nearest in difflib.get_close_matches(group, known, n=1):
        error.hint = f"did you mean {nearest!r}? `vq group list` shows all groups"


def exit_code_of(error: Exception) -> int:
    """Return the exit code of a command that ended with this error."""
    return EXIT_USAGE if isinstance(error, InvalidArgument) else EXIT_FAILED


def run(
    command: Callable[[], object], *, as_json: bool = False, stderr: TextIO | None = None
) -> int:
    """Call ``command`` and return the exit code of how it ended.

    An integer that ``command`` returns is the exit code: so click reports ``--help`` and the like.
    """
    target = stderr or sys.stderr
    try:
        code = command()
    except click.ClickException as error:
        told = _misplaced(error) or error
        if as_json:
            print(as_json_text(error, told.format_message(), _help_of(error)), file=target)
        else:
            told.show(file=target)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        print(_INTERRUPTED_JSON if as_json else "interrupted", file=target)
        return signals.exit_code()
    except BrokenPipeError:
        return EXIT_BROKEN_PIPE
    except VqError as error:
        print(describe(error, as_json=as_json), file=target)
        return exit_code_of(error)
    except OSError as error:
        said = _os_text(error)
        print(
            as_json_text(error, said) if as_json else f"error: {text.safe(said)}",
            file=target,
        )
        return EXIT_FAILED
    return code if isinstance(code, int) else EXIT_OK


def _os_text(error: OSError) -> str:
    """Return what an error of the system says; that there is no space might be said of a broker."""
    if error.errno in _NO_SPACE and error.filename is None:
        return f"standard output, or a file of this process, cannot be written: {error.strerror}"
    if not isinstance(error.filename, str) or error.filename2 is not None:
        return str(error)
    file = Path(error.filename)
    if error.errno == errno.ENOENT and not file.parent.is_dir():
        return (
            f"{error.filename!r} cannot be opened: there is no directory {str(file.parent)!r}; "
            "make it, or name another file"
        )
    return f"{error.filename!r}: {error.strerror}"


def _misplaced(error: click.ClickException) -> click.UsageError | None:
    """Say where an option belongs that a group does not take: `vq --config FILE topic list`."""
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return None
    command, path = error.ctx.command, error.ctx.command_path
    if not isinstance(command, click.Group) or command.invoke_without_command:
        return None
    return click.UsageError(
        f"No such option '{error.option_name}' here: options stand behind the command, as in "
        f"`{path} COMMAND {error.option_name} …`.",
        error.ctx,
    )


def _help_of(error: click.ClickException) -> str:
    context = error.ctx if isinstance(error, click.UsageError) else None
    return "" if context is None else f"see `{context.command_path} --help`"
