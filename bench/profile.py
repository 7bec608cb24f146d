"""Profiles one load: broker and client run under the sampler.

    python -m bench.profile WORK        one of ``WORKS``

It prints, for broker and client, the processor time of each thread by function.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from bench.cluster import Cluster
from bench.context import Context
from vq.cli.bench.worker import on_schedule

_SHOWN: Final = 14
_LEAST_SHARE: Final = 0.01


def _send_async(cluster: Cluster, size: int, count: int) -> None:
    topic = cluster.topic()
    cluster.run("send_async", topic=topic, count=count, size=size)


def _consume(cluster: Cluster, size: int, count: int) -> None:
    plain = replace(cluster, samples=None)
    topic = cluster.topic()
    plain.run("send_async", topic=topic, count=count, size=size)
    cluster.run("consume", topic=topic, group=topic, count=count, size=size)


def _send_sync(cluster: Cluster, threads: int) -> None:
    topic = cluster.topic()
    cluster.run("send_sync", topic=topic, seconds=5.0, size=128, threads=threads)


def _raw(cluster: Cluster) -> None:
    plain = replace(cluster, samples=None)
    topic = cluster.topic()
    sent = plain.run("send_async", topic=topic, count=250_000, size=1024)
    cluster.run(
        "raw_fetch",
        topic=topic,
        address=str(cluster.broker.spec.address),
        passes=10,
        size=1024,
        sent=sent["sent"],
    )


def _latency(cluster: Cluster) -> None:
    topic = cluster.topic()
    receive = cluster.worker(
        "receive_on_schedule",
        topic=topic,
        group=topic,
        count=25_000,
        warm_up=1_000,
        rate=5_000,
        size=128,
    )
    send = cluster.worker("send_on_schedule", topic=topic, rate=5_000, seconds=5.0, size=128)
    with receive, send:
        on_schedule(send, receive)


def _idle(cluster: Cluster) -> None:
    import time

    topic = cluster.topic(1_000)
    cluster.run("send_one_each", topic=topic, partitions=1_000, size=128)
    address = str(cluster.broker.spec.address)
    with replace(cluster, samples=None).worker(
        "idle_consumers", topic=topic, address=address, partitions=1_000, consumers=500
    ) as waiting:
        waiting.wait_ready().go()
        waiting.wait_ready()
        time.sleep(20.0)
        waiting.go().result()


#: The works under the sampler, by name.
WORKS: Final[dict[str, Callable[[Cluster], None]]] = {
    "send_async": lambda cluster: _send_async(cluster, 128, 600_000),
    "consume": lambda cluster: _consume(cluster, 128, 600_000),
    "send_sync": lambda cluster: _send_sync(cluster, 1),
    "send_sync, 4 threads": lambda cluster: _send_sync(cluster, 4),
    "send_sync, 64 threads": lambda cluster: _send_sync(cluster, 64),
    "1 KiB in": lambda cluster: _send_async(cluster, 1024, 250_000),
    "1 KiB out": lambda cluster: _consume(cluster, 1024, 250_000),
    "raw fetch": _raw,
    "latency": _latency,
    "idle": _idle,
}
#: The work to profile for a figure whose name begins with the key.
_EXPLAINS: Final = {
    "send_async": "send_async",
    "consume": "consume",
    "send_sync, 1 thread": "send_sync",
    "send_sync, 4 threads": "send_sync, 4 threads",
    "send_sync, 64 threads": "send_sync, 64 threads",
    "1 KiB in": "1 KiB in",
    "1 KiB out": "1 KiB out",
    "raw fetch": "raw fetch",
    "end to end": "latency",
    "idle": "idle",
}


def works_of(figures: Iterable[str]) -> list[str]:
    """Return the works that explain these figures, each once."""
    found = [work for name in figures for key, work in _EXPLAINS.items() if name.startswith(key)]
    return list(dict.fromkeys(found))


def profile(work: str, context: Context) -> str:
    """Run a work under the sampler; return the report."""
    with tempfile.TemporaryDirectory(prefix="vq-profile-") as scratch:
        samples = Path(scratch)
        with replace(context, samples=samples).cluster() as cluster:
            WORKS[work](cluster)
        parts = [
            _report(path.stem, json.loads(path.read_text()))
            for path in sorted(samples.glob("*.json"))
        ]
    return f"profile of {work}\n" + "\n".join(parts)


def _report(process: str, samples: dict[str, Any]) -> str:
    """Return a process's threads and, for each, its functions by own processor time."""
    lines = []
    for thread, own in sorted(samples["own"].items(), key=lambda item: -sum(item[1].values())):
        used = sum(own.values())
        if used < _LEAST_SHARE * samples["seconds"]:
            continue
        lines.append(
            f"{process}, thread {thread}: {used:.2f} s of processor time in "
            f"{samples['seconds']:.1f} s"
        )
        whole = samples["whole"][thread]
        lines.append("    own   with callees")
        for place, seconds in sorted(own.items(), key=lambda item: -item[1])[:_SHOWN]:
            if seconds >= _LEAST_SHARE * used:
                lines.append(f"  {seconds / used:5.1%}  {whole[place] / used:6.1%}  {place}")
    return "\n".join(lines)


def main() -> int:
    """Profile the work on the command line."""
    parser = argparse.ArgumentParser(prog="bench/profile.py", description=__doc__.split("\n")[0])
    parser.add_argument("work", choices=list(WORKS))
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()))
    arguments = parser.parse_args()
    root = Path(__file__).resolve().parent.parent
    os.chdir(root)
    os.environ["PYTHONPATH"] = str(root)
    context = Context(
        directory=arguments.directory.resolve(),
        rounds=1,
        quick=False,
        say=lambda text: print(text, file=sys.stderr),
    )
    print(profile(arguments.work, context))
    return 0


if __name__ == "__main__":
    sys.exit(main())
