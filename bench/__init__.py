"""Benchmarks of vq beside what the bare machine gives; see docs/performance.md.

    python -m bench.run            everything, with the room in turns (make bench)
    python -m bench.room           the room alone
    python -m bench.profile        where the time goes in one of the loads

The product imports nothing from here; this package uses the product's public API and ``vq bench``'s
works and processes.
"""
