"""vq and Spark: topics as DataFrames, and reports on a whole cluster.

``spark.read.format("vq")`` works without more: Spark finds ``DefaultSource`` in packages whose name
begins with ``pyspark_``. Where it does not look there, ``register(spark)`` tells it.

It uses vq's public API alone. Transformations are functions from DataFrames to DataFrames; sessions
and paths stay in the programs that call them. It needs the ``spark`` extra.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_vq.source import VqSource as DefaultSource

__all__ = ["DefaultSource", "register"]


def register(spark: "SparkSession") -> None:
    """Let a session know the formats of this package, and the calling thread that session.

    A thread that writes calls it, too, unless it has made the session: Spark does not find formats
    of Python in a thread without an active session.
    """
    from pyspark_vq.session import activate
    from pyspark_vq.source import VqSource
    from pyspark_vq.tables import TABLES

    activate(spark)
    for source in (VqSource, *TABLES):
        spark.dataSource.register(source)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name == "DefaultSource":
            from pyspark_vq.source import VqSource

            return VqSource
        raise AttributeError(f"module 'pyspark_vq' has no attribute {name!r}")
