"""The client process of the benchmark: ``vq bench``'s works, the benchmark's own, the peers'."""

import sys
from collections.abc import Callable
from typing import Any

from bench import (
    gateway,
    groups,
    modes,
    read_loads,
    replicated_loads,
    requests,
    send_loads,
    sends,
    shared,
    transactions,
)
from bench.peers import WORKS as PEER_WORKS
from vq.cli.bench import worker, workload

WORKS: dict[str, Callable[..., dict[str, Any]]] = {
    **workload.WORKS,
    **send_loads.WORKS,
    **read_loads.WORKS,
    **modes.WORKS,
    **groups.WORKS,
    **gateway.WORKS,
    **sends.WORKS,
    **transactions.WORKS,
    **requests.WORKS,
    **shared.WORKS,
    **replicated_loads.WORKS,
    **PEER_WORKS,
}

if __name__ == "__main__":
    sys.exit(worker.serve(WORKS))
