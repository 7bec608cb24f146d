"""``vq worker``: processes that handle the messages of a group; and one such process."""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from vq.cli.base.options import Invocation, WholeNumber, command_options, flag, option
from vq.cli.base.settings import build, is_given
from vq.errors import InvalidArgument, InvalidState

#: What a worker says of its consumer where nobody else does.
_CONSUMER_DEFAULTS: Final = {"mode": "concurrent", "on_bad_record": "dead-letter"}


@click.command()
@click.argument("handlers", nargs=-1, required=True, metavar="MODULE[:NAME]")
@option("--group NAME", "The consumer group.", required=True)
@option("--topic NAME ... as topics", "A topic of a plain function.")
@option("--processes N", "Processes.  [1]", WholeNumber(1, 256))
@option("--workers N", "Threads of each process.  [1]", WholeNumber(1, 1024))
@option(
    "--model",
    "Whose a message is: of a partition's member, or of any one.  [clustering]",
    ["clustering", "shared"],
)
@option(
    "--mode",
    "How many messages of a partition are in hand.  [concurrent]",
    ["orderly", "keyed", "concurrent"],
)
@option("--max-attempts N", "Tries of a delivery.", WholeNumber(1))
@option(
    "--on-failure",
    "What follows them.  [as the group has it]",
    ["hold", "retry-topic", "dead-letter", "skip", "stop"],
)
@option(
    "--middleware MODULE:NAME ...",
    "A function (message, call) around each try; the first one is the outermost.",
)
@option("--time-limit S", "End a process that takes longer.", float)
@option("--soft-time-limit S", "Raise vq.SoftTimeLimit in the handler.", float)
@option("--max-messages N", "Replace a process after so many.", WholeNumber(1))
@option("--max-memory MB", "Replace a process that takes so much.", WholeNumber(1))
@option("--stop-timeout S", "How long a stop waits for handlers.  [30]", float)
@option("--health-host ADDRESS", "A loopback address.  [127.0.0.1]")
@option(
    "--health-port N",
    "Port of /healthz, /readyz and /metrics; 0: none.  [0]",
    WholeNumber(0, 65535),
)
@flag("--reload", "Replace processes when code changes.", default=None)
@command_options
def worker(
    invocation: Invocation,
    handlers: tuple[str, ...],
    group: str,
    topics: tuple[str, ...],
    workers: int | None,
    model: str | None,
    mode: str | None,
    max_attempts: int | None,
    on_failure: str | None,
    middleware: tuple[str, ...],
    processes: int | None,
    time_limit: float | None,
    soft_time_limit: float | None,
    max_messages: int | None,
    max_memory: int | None,
    stop_timeout: float | None,
    health_host: str | None,
    health_port: int | None,
    reload: bool | None,
) -> None:
    """Handle the messages of a group in several processes.

    MODULE:NAME is a task (vq.task), a list of tasks, or a function of a message, which needs
    --topic; MODULE alone has all of its tasks. Settings can also stand in the tables [worker],
    [consumer] and [producer] of the --config file, or in VQ_WORKER_*.

    SIGTERM and ctrl-C let handlers finish, for --stop-timeout seconds. The same again ends at once:
    what is handled is committed, what is in hand is delivered again. SIGHUP replaces the processes
    one after the other. Exit codes: 0 all was finished; 1 something in hand is delivered again, or
    processes do not start; 2 the handlers or settings cannot be used.
    """
    from vq.worker.config import CHILD_VARIABLE, RunnerConfig

    sources = invocation.sources.with_flags(
        processes=processes,
        time_limit_s=time_limit,
        soft_time_limit_s=soft_time_limit,
        messages_max=max_messages,
        memory_mb_max=max_memory,
        stop_timeout_s=stop_timeout,
        health_host=health_host,
        health_port=health_port,
        reload=reload,
    )
    config = build(RunnerConfig, "worker", sources)
    given = {
        "group": group,
        "workers": workers,
        "model": model,
        "mode": mode,
        "max_attempts": max_attempts,
        "on_failure": on_failure,
        "listener_timeout_s": config.time_limit_s or None,
    }
    for name, value in _CONSUMER_DEFAULTS.items():
        if given.get(name) is None and not is_given("consumer", name, invocation.sources):
            given[name] = value
    settings = invocation.consumer_config(**given)
    child = os.environ.pop(CHILD_VARIABLE, "")
    if child:
        _be_child(invocation, child, config, settings, (handlers, topics, middleware))
    invocation.client_config()  # what is wrong with it is told once
    invocation.logs.start("info", process="parent")
    clean = asyncio.run(_run(invocation, config, settings.workers, handlers))
    if not clean:
        raise InvalidState(
            "what was in hand at the end of the time is delivered again",
            hint="give handlers more time with --stop-timeout, or make them shorter",
        )


def _be_child(
    invocation: Invocation, told: str, config: Any, consumer: Any, names: tuple[Any, Any, Any]
) -> None:
    """Be a process of a worker; ends it."""
    from vq.worker.child import ChildSettings, run_child

    try:
        number, slots, events = map(int, told.split(","))
    except ValueError as error:
        raise InvalidArgument(f"this process is none of a worker: {told!r}") from error
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # its parent tells it what to do
    invocation.logs.start("info", process=str(number))
    handlers, topics, middleware = names
    code = run_child(
        ChildSettings(
            handlers=handlers,
            topics=topics,
            middleware=middleware,
            client=invocation.client_config(),
            producer=invocation.producer_config(),
            consumer=consumer,
            soft_time_limit_s=config.soft_time_limit_s,
            slots=slots,
            events=events,
        )
    )
    sys.exit(code)


async def _run(
    invocation: Invocation, config: Any, workers: int, handlers: tuple[str, ...]
) -> bool:
    from vq.worker.supervisor import Supervisor

    command = [sys.executable, "-m", "vq", *sys.argv[1:]]
    supervisor = Supervisor(config, command, _environment(os.environ), workers, [Path.cwd()])
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.stop)
    loop.add_signal_handler(signal.SIGHUP, supervisor.reload)
    remark = invocation.output.remark
    return await supervisor.run(
        lambda: remark(f"{config.processes} processes handle {', '.join(handlers)}")
    )


def _environment(found: Mapping[str, str]) -> dict[str, str]:
    return {**found, "PYTHONUNBUFFERED": "1"}
