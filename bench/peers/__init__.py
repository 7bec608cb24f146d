"""The same work on other systems that this machine has, through their usual Python clients.

One module per system; each starts the installed server itself in a fresh directory, on free ports
of 127.0.0.1, and stops it. Systems are compared only with vq in the same durability class:

``fsync``       acknowledged after the bytes are on the disk
``page cache``  acknowledged after the write; a power cut may lose acknowledged messages

Works have the form of ``vq.cli.workload``; a client library is imported by the work itself.
"""

from bench.peers import kafka, nats, rabbitmq, rabbitmq_stream
from bench.peers.peer import Missing, Peer

__all__ = ["PEERS", "WORKS", "Missing", "Peer"]

PEERS: tuple[Peer, ...] = (rabbitmq.PEER, rabbitmq_stream.PEER, nats.PEER, *kafka.PEERS)
WORKS = {name: work for peer in PEERS for name, work in peer.works.items()}
