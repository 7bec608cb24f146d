"""The fixtures that users get."""

from vq.testing.fixtures import vq_cluster, vq_thread_cluster

__all__ = ["vq_cluster", "vq_thread_cluster"]
