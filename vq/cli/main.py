"""The ``vq`` command: a table of sub-commands, each imported only when it is called.

``vq --help`` shows the texts of the table, so that no sub-command is imported for it; a test
compares them with the help of the commands.
"""

import difflib
import importlib
import io
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import click
from click.shell_completion import CompletionItem

from vq.cli.base import errors, signals
from vq.version import __version__


class Entry(NamedTuple):
    """The module of a sub-command, and its line in the list of commands."""

    module: str
    attribute: str
    help: str


#: Where each command is below ``vq.cli``, in a module of its name, and what it does.
_PLACES: Final = {
    "brokers.standalone": "Run ZooKeeper, brokers and a web console here, for development.",
    "brokers.broker": "Run one broker process until it is told to stop.",
    "topics.topic": (
        "Create, alter, list, describe, verify, move, close, drain, delete and undelete topics."
    ),
    "messages.produce": "Send the lines of a file or of standard input.",
    "messages.consume": "Print messages, as a member of a group or without one.",
    "groups.group": (
        "List, describe, make, change, reset and delete consumer groups; forget topics."
    ),
    "messages.write": "List repeatable writes of Spark, and end one.",
    "messages.dlq": "List, read, resend and delete the dead letters of consumer groups.",
    "messages.delayed": "List and cancel messages that are delivered later.",
    "messages.tx": "List and show transactions, and decide those that hang.",
    "messages.message": "Look at single messages, and find them.",
    "archives.archive": "Archive old blocks; list, verify, restore, export them.",
    "cluster.cluster": (
        "Look at the brokers of the cluster, switch masters, change settings; definitions."
    ),
    "security.user": "Add, list, show, rotate and remove the users that may connect to brokers.",
    "messages.gateway": "Serve the cluster over HTTP, for programs without a client of vq.",
    "security.acl": "Add, remove, list and test the rules that say who may do what at the brokers.",
    "security.audit": "Show what operators did: who, what, to what, with which outcome.",
    "security.secure": (
        "Say where the cluster stands between plain and closed, and what the next step is."
    ),
    "security.quota": (
        "Set, remove, list and show how much users and their clients may use of the brokers."
    ),
    "cluster.zk": "Check, repair, secure, export and import the cluster's tree in ZooKeeper.",
    "explain.explain": "Say why something does not happen, what that rests on, and what mends it.",
    "cluster.balance": "Give topics to broker groups by measured load: plan, apply, watch, cancel.",
    "groups.worker": "Handle the messages of a group in several processes.",
    "groups.lag_exporter": "Serve the lag of all consumer groups as metrics for Prometheus.",
    "console.console": "Serve the web console; make and change its accounts and tokens.",
    "report=reports.reports": (
        "Report on the whole cluster with Spark: lag, capacity, and an audit of contents."
    ),
    "local.local": "Look at a queue inside one process, put into it, and serve it to others.",
    "bench.bench": "Measure throughput and latency of the cluster.",
    "cluster.doctor": "Check machine and cluster, and say what to do.",
}


def _entries() -> Iterator[tuple[str, Entry]]:
    for place, about in _PLACES.items():
        name, _, module = place.rpartition("=")
        attribute = name or module.rpartition(".")[2]
        yield attribute.replace("_", "-"), Entry(f"vq.cli.{module}", attribute, about)


COMMANDS: Final[Mapping[str, Entry]] = dict(_entries())


class LazyGroup(click.Group):
    """A group that imports a sub-command when it is asked for, not before."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a sub-command; None if there is none of that name."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command = getattr(importlib.import_module(entry.module), entry.attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the sub-command that a command line names; a wrong name is told the nearest one.

        click looks for it among the commands that it holds, and this group holds none.
        """
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            nearest = difflib.get_close_matches(args[0], COMMANDS, n=1)
            if not nearest:
                raise
            said = f"{error.message} Did you mean {nearest[0]!r}?"
            raise click.UsageError(said, ctx) from error

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the sub-commands of the table that begin so, without importing them."""
        return [
            CompletionItem(name, help=entry.help)
            for name, entry in COMMANDS.items()
            if name.startswith(incomplete)
        ]

    def invoke(self, ctx: click.Context) -> Any:
        """Run the sub-command; click alone would end the process when the output is closed."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise click.exceptions.Exit(errors.EXIT_BROKEN_PIPE) from None
        except KeyboardInterrupt:
            if sys.stderr.isatty():
                raise  # click ends the line that has the ^C
            raise click.Abort from None  # in a file that is an empty line beside the JSON

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of commands without importing one."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])


@click.command(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Settings: flags, then VQ_* variables, then the TOML file named by --config, then "
    "defaults. Exit codes: 0 ok, 1 failed, 2 usage.",
)
@click.version_option(__version__, prog_name="vq")
def cli() -> None:
    """A durable, partitioned message queue. Begin with: vq standalone"""


def commands(command: click.Command = cli, name: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield every command that does something with its full name, without ``vq``."""
    if not isinstance(command, click.Group):
        yield name, command
        return
    if command.invoke_without_command:
        yield name, command
    context = click.Context(command)
    for each in command.list_commands(context):
        sub = command.get_command(context, each)
        assert sub is not None
        yield from commands(sub, f"{name} {each}".strip())


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    as_json = "--json" in arguments
    return errors.run(
        lambda: cli.main(args=list(arguments), prog_name="vq", standalone_mode=False),
        as_json=as_json,
    )


def main() -> None:
    """Entry point of the installed ``vq`` command; ends the process."""
    signals.install()
    _open_closed_streams()
    _show_what_cannot_be_written()
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = errors.EXIT_BROKEN_PIPE
    if code == errors.EXIT_BROKEN_PIPE:
        # The interpreter flushes once more on its way out; give it somewhere to flush to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _show_what_cannot_be_written() -> None:
    """Let a stream that is not UTF-8 print escapes instead of raising."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _open_closed_streams() -> None:
    """Replace closed standard streams by empty ones: no socket may get their descriptors."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


if __name__ == "__main__":
    main()
