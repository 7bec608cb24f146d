"""Benchmarks of vq and of the bare machine; see docs/performance.md.

    python -m bench.run            all scenarios, with the baseline in turns (make bench)
    python -m bench.baseline       the baseline alone
    python -m bench.profile        the processor time of one load, by function

The product imports nothing from here; this package uses the product's public API and the works and
processes of ``vq bench``.
"""
