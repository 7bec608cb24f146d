"""The same work on other systems that this machine has, through their usual Python clients.

One module per system; each starts the installed server itself in a fresh directory, on free ports
of 127.0.0.1, and stops it. ``PEERS`` have one server, ``CLUSTER_PEERS`` three nodes. Systems are
compared only with vq in the same durability class:

``fsync``       acknowledged after the bytes are on the disk
``page cache``  acknowledged after the write; a power cut may lose acknowledged messages

Works have the form of ``vq.cli.bench.workload``; a client library is imported by the work itself.
"""

from bench.peers import (
    kafka,
    kafka_cluster,
    nats,
    nats_cluster,
    rabbitmq,
    rabbitmq_quorum,
    rabbitmq_stream,
)
from bench.peers.cluster import ClusterPeer
from bench.peers.peer import Missing, Peer

__all__ = ["CLUSTER_PEERS", "PEERS", "WORKS", "ClusterPeer", "Missing", "Peer"]

PEERS: tuple[Peer, ...] = (rabbitmq.PEER, rabbitmq_stream.PEER, nats.PEER, *kafka.PEERS)
CLUSTER_PEERS: tuple[ClusterPeer, ...] = (
    *kafka_cluster.PEERS,
    rabbitmq_quorum.PEER,
    *nats_cluster.PEERS,
)
WORKS = {name: work for peer in (*PEERS, *CLUSTER_PEERS) for name, work in peer.works.items()}
