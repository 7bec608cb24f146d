"""Options that many commands share, and the object they become.

A command is decorated with ``@command_options`` and gets an ``Invocation`` first: where settings
come from, where output goes, and how to run a coroutine. Importing this module imports neither the
client nor ZooKeeper's library, so that help stays fast.
"""

import asyncio
import contextlib
import functools
import math
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

import click

from vq import limits
from vq.cli.base.errors import name_nearest_group, name_nearest_topic, name_topic
from vq.cli.base.logs import FORMATS, LEVELS, LogOptions
from vq.cli.base.output import Output
from vq.cli.base.passwords import ask_password
from vq.cli.base.settings import Sources, build, choice, is_given, read_sources, strangers
from vq.errors import UnknownTopic, VqError
from vq.model import Compression
from vq.security.secret_files import read_secret
from vq.security.tls import ClientCertificates

if TYPE_CHECKING:
    from vq.client.cluster import ClusterClient
    from vq.client.config import ConsumerConfig, MessageFactoryConfig, ProducerConfig

P = ParamSpec("P")
R = TypeVar("R")
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
_SIZE_UNITS: Final = {
    "K": limits.KIB,
    "M": limits.MIB,
    "G": limits.GIB,
    "T": 1024 * limits.GIB,
}


class Commands(click.Group):
    """A group of commands whose list has their first sentences whole; click cuts them off."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of commands."""
        names = self.list_commands(ctx)
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, self.commands[name].get_short_help_str(limit=1_000)) for name in names]
            )


class WholeNumber(click.IntRange):
    """A whole number within bounds; click's own message would call it an integer range."""

    name = "whole number"


class Seconds(click.FloatRange):
    """A number within bounds that is one: no wait is `nan` seconds long, and none need be `inf`."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number.

        Raises:
            click.BadParameter: It is none, out of bounds, or not finite.
        """
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


def directory(path: str | Path) -> Path:
    """Return a directory, and do not look at it: on a mount that hangs, that would never end."""
    return Path(path)


def size_of(text: str) -> int:
    """Return a number of bytes that is given as it is, or in KiB (``64K``), MiB, GiB or TiB.

    Raises:
        ValueError: It is none.
    """
    unit = _SIZE_UNITS.get(text[-1:].upper())
    digits = text if unit is None else text[:-1]
    if not (digits.isascii() and digits.isdigit()):
        raise ValueError(f"{text!r} is not a number of bytes")
    return int(digits) * (unit or 1)


class Size(WholeNumber):
    """A number of bytes within bounds, as it is or in KiB (``64K``), MiB (``1M``) and so on."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes.

        Raises:
            click.BadParameter: It is no such number, or out of bounds.
        """
        with contextlib.suppress(ValueError):
            value = size_of(str(value))
        return int(super().convert(value, param, ctx))


def option(declared: str, about: str = "", kind: Any = None, **more: Any) -> Decorator:
    """Declare an option of a command, in one text and its line of help.

    Help shows a default that is not empty, unless the line ends with one in brackets.

    Args:
        declared: The option; then, where help names its value, that name; then ``...`` if it may be
            given several times; then ``as`` and the parameter if that is not named like the option:
            ``"--header NAME=VALUE ... as headers"``. A short name stands first: ``"-f,--follow"``.
        about: Its line of help.
        kind: The type of its value, or the words that it may be; None: any text.
        more: As for ``click.option``.
    """
    given, _, parameter = declared.partition(" as ")
    names, *value = given.split()
    if value[-1:] == ["..."]:
        more["multiple"] = bool(value.pop())
    if isinstance(kind, Iterable):
        kind = click.Choice([str(each) for each in kind])
    return click.option(
        *names.split(","),
        *parameter.split(),
        type=kind,
        metavar="".join(value) or None,
        help=about or None,
        show_default=bool(more.get("default")) and not about.endswith("]"),
        **more,
    )


def flag(declared: str, about: str, **more: Any) -> Decorator:
    """Declare an option without a value, as ``option`` does."""
    return option(declared, about, is_flag=True, **more)


def together(*options: Decorator) -> Decorator:
    """Declare several options; help shows them in this order."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        return functools.reduce(lambda so_far, add: add(so_far), reversed(options), function)

    return decorate


def compression_options(about: str, defaults: tuple[str, str] | None) -> Decorator:
    """Add ``--compression`` and ``--compression-threshold``.

    Args:
        about: What the kind is for.
        defaults: What counts without either option; None: what is set already.
    """
    kind, threshold = ("", "") if defaults is None else (f"  [{each}]" for each in defaults)

    return together(
        option("--compression", f"{about}{kind}", Compression),
        option(
            "--compression-threshold BYTES",
            f"Compress messages of at least so many bytes, 0 to 1M, such as 64K.{threshold}",
            Size(min=0, max=limits.MESSAGE_BYTES_MAX),
        ),
    )


@dataclass(frozen=True, slots=True)
class Invocation:
    """One run of one command."""

    sources: Sources
    output: Output
    logs: LogOptions = field(default_factory=LogOptions)
    asked: dict[str, str] = field(default_factory=dict, repr=False)  # of the person, once

    def client_config(self) -> "MessageFactoryConfig":
        """Return how to reach the cluster."""
        from vq.client.config import MessageFactoryConfig

        sources = self.sources
        if not is_given("client", "client_id", sources):
            sources = sources.with_flags(client_id=f"vq-cli-{os.getpid()}")
        if sources.flags.get("user") and not is_given("client", "password", sources):
            self.asked.update(password=self.asked.get("password") or ask_password(sources))
            sources = sources.with_flags(**self.asked)
        return build(MessageFactoryConfig, "client", sources)

    def producer_config(self, **flags: Any) -> "ProducerConfig":
        """Return a producer's settings; ``flags`` come first."""
        from vq.client.config import ProducerConfig

        return build(ProducerConfig, "producer", self.sources.with_flags(**flags))

    def consumer_config(self, **flags: Any) -> "ConsumerConfig":
        """Return a consumer's settings; ``flags`` come first."""
        from vq.client.config import ConsumerConfig

        return build(ConsumerConfig, "consumer", self.sources.with_flags(**flags))

    def only_planned(self, what: str = "nothing was changed") -> None:
        """Say that a plan was shown and not carried out; that is no failure."""
        self.output.remark(f"{what}; add --yes to do it")

    def show_act(self, facts: Mapping[str, Any], *, yes: bool, did: str, plan: str) -> None:
        """Show an act that was done with ``yes``, and was only planned without it.

        Args:
            facts: What JSON has beside ``done``.
            did: What was done, for people.
            plan: What would be.
        """
        if not self.output.document({"done": yes, **facts}):
            self.output.remark(did if yes else f"plan: {plan}")
        if not yes:
            self.only_planned()

    def topic_names(self) -> list[str]:
        """Return the names of all topics.

        Raises:
            UnknownCluster: No broker has ever registered; the error names the clusters there are.
        """
        from vq.coordination.topics.topics import list_topics

        async def look(cluster: "ClusterClient") -> list[str]:
            return await list_topics(cluster.coordinator)

        return self.call(look)

    def call(
        self,
        operation: "Callable[Concatenate[ClusterClient, P], Coroutine[Any, Any, R]]",
        *arguments: P.args,
        **named: P.kwargs,
    ) -> R:
        """Open the cluster, run an operation, and close the cluster; return the result.

        Raises:
            UnknownCluster: No broker has ever registered; the error names the clusters there are.
        """
        from vq.operations.base.connect import cluster_client

        async def work() -> R:
            async with cluster_client(self.client_config()) as cluster:
                return await operation(cluster, *arguments, **named)

        return self.run(work())

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine to its end; ctrl-C or SIGTERM cancels it, so that it can tidy up."""
        return asyncio.run(work)


#: Options for the files of TLS, the same for clients and for a broker.
_TLS_FILES: Final = (
    ("--tls-ca", "Reach brokers with TLS: authorities of certificates; 'system': this machine's."),
    ("--tls-certificate", "Certificate of this end; a broker that has one serves TLS."),
    ("--tls-key", "Its private key.  [in the same file]"),
)
CLIENT_CERTIFICATES: Final = tuple(str(each) for each in ClientCertificates)
#: For whoever listens.
plaintext_option: Final = flag(
    "--plaintext", "Serve other machines without TLS: the network is yours alone.", default=None
)
#: Options of a command that serves HTTP.
_HTTPS_FILES: Final = (
    ("--https-certificate", "Serve HTTPS with this certificate.  [plain HTTP]"),
    ("--https-key", "Its private key.  [in the same file]"),
    ("--https-ca", "Authorities of certificates of clients."),
)
#: Commands for which a topic that is missing may be one to create.
_MAY_CREATE: Final = ("produce", "consume", "bench")


def command_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of every command; pass an ``Invocation`` as first argument.

    They are ``--zookeeper --cluster --user --password-file``, those of ``_OWN_OPTIONS`` and those
    of ``_TLS_FILES``.
    """
    return together(
        option("--zookeeper HOST:PORT[,...]", "ZooKeeper servers.  [127.0.0.1:2181]"),
        option("--cluster NAME", "Name of the cluster.  [default]"),
        option(
            "--user NAME",
            "Who this is to brokers; the password is VQ_PASSWORD, in a file, or asked for.",
        ),
        option(
            "--password-file FILE",
            "File whose first line is the password of --user.",
            click.Path(dir_okay=False),
        ),
        *_OWN_OPTIONS,
        *(option(f"{name} FILE", about, directory) for name, about in _TLS_FILES),
    )(_invoked(function))


def command_options_without_cluster(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a command that reaches no cluster: ``--config --json`` and of logs."""
    return together(*_OWN_OPTIONS)(_invoked(function))


#: Options that say how to reach a cluster, by parameter; each is a setting of that name.
_REACHING: Final = ("zookeeper", "cluster", "user", "tls_ca", "tls_certificate", "tls_key")
_OWN_OPTIONS: Final = (
    option("--config FILE", "TOML file with settings; also VQ_CONFIG.", click.Path(dir_okay=False)),
    flag("--json as as_json", "Print JSON."),
    option(
        "--log-level",
        "The least level of log lines, on standard error.  [warning; a broker: info]",
        LEVELS,
    ),
    option("--log-format", "Form of log lines.  [text; with --json: json]", FORMATS),
)


def _invoked(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(
        *args: Any,
        config: str | None,
        as_json: bool,
        log_level: str | None,
        log_format: str | None,
        password_file: str | None = None,
        **rest: Any,
    ) -> Any:
        sources = read_sources(
            config,
            os.environ,
            password=None if password_file is None else read_secret(password_file),
            log_level=log_level,
            log_format=log_format,
            **{name: rest.pop(name, None) for name in _REACHING},
        )
        logs = LogOptions(
            choice("log_level", LEVELS, sources) or "",
            choice("log_format", FORMATS, sources) or FORMATS[as_json],
        )
        logs.start()
        invocation = Invocation(sources, Output(as_json=as_json), logs)
        for variable in strangers(os.environ):
            invocation.output.remark(
                f"the variable {variable} is not a setting of vq; it is ignored"
            )
        try:
            return function(invocation, *args, **rest)
        except VqError as error:
            known = invocation.topic_names() if isinstance(error, UnknownTopic) else None
            if topic := _topic_of(rest):
                name_topic(error, topic)
                if known is not None:
                    creates = click.get_current_context().info_name in _MAY_CREATE
                    name_nearest_topic(error, topic, known, may_be_new=creates)
            if " group " in click.get_current_context().command_path:
                _name_group(invocation, error, rest.get("name", ""))
            raise

    return call


def https_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add those of ``_HTTPS_FILES``, ``--https-client-certificates`` and ``--plaintext``."""
    return together(
        plaintext_option,
        *(option(f"{name} FILE", about, directory) for name, about in _HTTPS_FILES),
        option(
            "--https-client-certificates",
            "Whether clients must show a certificate.  [none]",
            CLIENT_CERTIFICATES,
        ),
    )(function)


def _name_group(invocation: Invocation, error: VqError, name: str) -> None:
    """Let the error of a command of ``vq group`` name the group that a misspelt name may mean."""
    from vq.coordination.groups.groups import UnknownGroup, list_groups

    async def look(cluster: "ClusterClient") -> list[str]:
        return await list_groups(cluster.coordinator)

    if isinstance(error, UnknownGroup):
        name_nearest_group(error, name, invocation.call(look))


def _topic_of(arguments: Mapping[str, Any]) -> str | None:
    """Return the topic that a command is about; None: none, or several."""
    topic = arguments.get("topic")
    if topic is None and " topic " in click.get_current_context().command_path:
        topic = arguments.get("name")
    return topic if isinstance(topic, str) else None


def no_effect(given: str, why: str, instead: str) -> click.UsageError:
    """Return the error for an option that would change nothing beside the others.

    Args:
        given: The option with its value.
        why: The other options, such as "without --key".
        instead: What to do if the option is to have an effect.
    """
    return click.UsageError(f"{given} has no effect {why}: leave it out, or {instead}")


def partitions_option(about: str, *, required: bool = False) -> Decorator:
    """Add ``--partition``, which may be given several times."""
    return option("--partition N ... as partitions", about, WholeNumber(min=0), required=required)


ids_option: Final = option(
    "--id ID ... as ids", "Only messages with this id; repeatable.", WholeNumber(min=0)
)


def yes_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--yes``, which every command that takes something away needs."""
    return flag("--yes", "Do it; without it only the plan is shown.")(function)
