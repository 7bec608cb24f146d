"""Clusters in this process, for tests of what sends and receives messages.

``Cluster`` is a whole cluster in memory, for coroutines; ``ThreadCluster`` is the same for blocking
code. Brokers, protocol and clients are the real ones; ZooKeeper, network and disks are twins in
memory, so there is no socket, no file and nothing to install. ``simulated`` runs a test in virtual
time, where waiting costs nothing, with an interleaving from a seed. ``Faults`` is what can go wrong
on order. ``vq.testing.fixtures`` has these for pytest, with a real cluster besides, and
``vq.testing.strategies`` draws messages for hypothesis.

In here: twins put together, faults, virtual time. Not in here: the twins themselves, which stand
beside what they are twins of, and processes (``vq.devtools``).
"""

from vq.testing.cluster import Cluster
from vq.testing.faults import Faults
from vq.testing.simulation import simulated
from vq.testing.threads import ThreadCluster
from vq.testing.waiting import block_until, until, until_true

__all__ = [
    "Cluster",
    "Faults",
    "ThreadCluster",
    "block_until",
    "simulated",
    "until",
    "until_true",
]
