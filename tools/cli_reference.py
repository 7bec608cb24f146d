"""Write docs/reference/cli.md from the commands' help texts.

    python tools/cli_reference.py      write the file

A test compares the committed file with `render()`, so that the reference cannot go stale. What the
commands cannot say of themselves (settings, exit codes, the forms of output) stands in `PREFACE`.
"""

import inspect
from collections.abc import Iterator
from pathlib import Path

import click

from vq.cli.main import commands

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "reference" / "cli.md"

#: Said once in the preface, not again under each command.
SHARED = {
    "--zookeeper",
    "--cluster",
    "--config",
    "--json",
    "--log-level",
    "--log-format",
    "--help",
}

PREFACE = """\
# The `vq` command

This page is written by `make docs` from the commands themselves; a test keeps it so.

## What all commands share

**Settings.** A flag overrides a `VQ_*` variable, a variable overrides the TOML file (`--config` or
`VQ_CONFIG`), and the file overrides the default. A command refuses an unknown key
in the sections of the file that it reads, and an unknown variable that begins with the name of such
a section (`VQ_PRODUCER_…`), and names the nearest known one. It also refuses a variable whose first
word after `VQ_` is nearly a known one (`VQ_ZOOKEPER`). It names other unknown variables that
begin with `VQ_`, and ignores them. Settings that hold objects
(`serializer`, `interceptors`) can only be set in Python.

| in the file | variable | flag |
| --- | --- | --- |
| `zookeeper = "zk1:2181,zk2:2181"` | `VQ_ZOOKEEPER` | `--zookeeper` |
| `cluster = "orders"` | `VQ_CLUSTER` | `--cluster` |
| `log_level = "info"` | `VQ_LOG_LEVEL` | `--log-level` |
| `log_format = "json"` | `VQ_LOG_FORMAT` | `--log-format` |
| `[broker]` `port = 8123` | `VQ_BROKER_PORT` | `--port` |
| `[broker.labels]` `rack = "r1"` | `VQ_BROKER_LABELS=rack=r1,zone=a` | |
| `[client]` `connect_timeout_s = 3.0` | `VQ_CLIENT_CONNECT_TIMEOUT_S` | |
| `[producer]` `batch_bytes = 1048576` | `VQ_PRODUCER_BATCH_BYTES` | |
| `[consumer]` `commit_interval_s = 5.0` | `VQ_CONSUMER_COMMIT_INTERVAL_S` | |

The sections take the fields of `BrokerConfig`, `MessageFactoryConfig`, `ProducerConfig` and
`ConsumerConfig`. [broker-settings.md](broker-settings.md) and [api.md](api.md) have
the meaning, unit, bounds and default of each field.

**Output.** Results go to standard output; remarks, plans and progress go to standard error.

| output goes to | a list is |
| --- | --- |
| a terminal | an aligned table; on a narrow terminal, a block of lines for each row |
| a pipe or file | tab-separated lines below one line of column names |
| anywhere, with `--json` | one JSON document; for messages, one object per line |

A column has the name of its field in JSON. On a terminal `vq cluster status` puts
the errors of brokers below the table. An unknown value is `unknown` in tables and `null` in
JSON, never 0. Numbers in tables have no separators: they can be pasted into a command.

### JSON for programs

A truth value is `true` or `false`, a size is in bytes, a time is in seconds (`_s`; a moment counts
from 1970, UTC: `jq` shows it with `todate`), nothing is `null`, several things are a list. Message
ids are text, and so are integer keys beyond 2^53. [json/](json/) has a JSON Schema for each
command; tests compare real output with them. Later versions may add fields.

**Errors** go to standard error with what to do. With `--json` they are one JSON object with
`error` (its class), `outcome` (`refused`: certainly not done; `unknown`: perhaps done; `failed`),
`message`, `status` (null if it has none), `hint`, `retriable` and `details`;
[errors](errors.md) has their names. Remarks are objects with `remark` then, so standard error
has one JSON object a line. `vq produce --json` also
lists the first lines that were not acknowledged: `line`, `outcome`, `error`, `message` and
`retriable`.

| exit code | meaning |
| --- | --- |
| 0 | done; or a plan was shown, as asked |
| 1 | refused, failed, or the outcome is unknown |
| 2 | usage: an unusable flag, argument or setting |
| 130 | interrupted with ctrl-C; 129 after SIGHUP, 143 after SIGTERM |
| 141 | the reader of the output ended |

**Every command** takes `--zookeeper HOST:PORT[,...]`, `--cluster NAME`, `--config FILE`, `--json`,
`--log-level LEVEL`, `--log-format text|json` and `--help`; those of `vq local` know no cluster.
Log lines go to standard error, from level `warning` on, with `--json` as one JSON object a line.
A `--cluster` in which no broker has
ever registered is refused, with the names of those that exist.

**Destructive commands** show what they would do and change nothing until `--yes` is given. The
plan ends with 0; in JSON it has `"done": false`.

[Complete commands in your shell](../howto/complete-commands.md): topics, groups and brokers.

## Commands
"""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _rows(command: click.Command, context: click.Context) -> Iterator[str]:
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and record[1] and not SHARED & set(parameter.opts):
            yield f"| `{_cell(record[0])}` | {_cell(record[1])} |"


def _section(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=name)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    parts = [f"### {name}", f"    {usage}", inspect.cleandoc(command.help or "")]
    rows = list(_rows(command, context))
    if rows:
        parts.append("\n".join(["| option | meaning |", "| --- | --- |", *rows]))
    return "\n\n".join(parts) + "\n"


def render() -> str:
    """Return the whole page."""
    sections = [_section(f"vq {name}", command) for name, command in commands()]
    return "\n".join([PREFACE, *sections])


if __name__ == "__main__":
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(render())
