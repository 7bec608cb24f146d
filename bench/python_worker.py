"""The client process of the benchmark with the record codec's Python loops, compiled or not."""

import runpy
import sys

if __name__ == "__main__":
    sys.modules["vq.store._codec"] = None  # type: ignore[assignment]  # importing it fails
    runpy.run_module("bench.worker", run_name="__main__", alter_sys=True)
