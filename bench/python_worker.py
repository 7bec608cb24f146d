"""The client process of the benchmark with its loops in Python, also if they are compiled."""

import runpy
import sys

if __name__ == "__main__":
    for compiled in ("vq.store.records._codec", "vq.client.producer._accumulator"):
        sys.modules[compiled] = None  # type: ignore[assignment]  # importing it fails
    runpy.run_module("bench.worker", run_name="__main__", alter_sys=True)
