"""``format("vq")``: what Spark makes a reader or a writer of."""

from typing import Final

import pyspark
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from pyspark_vq.errors import untraced
from pyspark_vq.options import ReadOptions
from vq.errors import InvalidState

#: The first Spark whose streams of Python have read limits.
STREAMS_FROM: Final = "4.2"


class VqSource(DataSource):
    """Topics of vq as DataFrames; docs/reference/spark.md has its options and columns."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "vq"

    def schema(self) -> StructType:
        """Return the columns of a query that does not name its own."""
        from pyspark_vq.columns import SCHEMA

        return SCHEMA

    @untraced
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        from pyspark_vq.far_times import tolerate
        from pyspark_vq.reader import BatchReader

        tolerate()
        return BatchReader(ReadOptions.parsed(self.options, stream=False), schema)

    @untraced
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream.

        Raises:
            InvalidState: This Spark cannot bound what a Python source reads at a time.
        """
        try:
            from pyspark_vq.stream import StreamReader
        except ModuleNotFoundError as error:
            raise InvalidState(
                f"streams of vq need Spark {STREAMS_FROM} or later; this is {pyspark.__version__}. "
                "Batch queries run on 4.1, too"
            ) from error

        return StreamReader(ReadOptions.parsed(self.options, stream=True), schema)

    @untraced
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the writer of a DataFrame."""
        from pyspark_vq.sink import batch_sink

        return batch_sink(self.options, schema, overwrite=overwrite)

    @untraced
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Return the writer of a stream's micro-batches."""
        from pyspark_vq.sink import stream_sink

        return stream_sink(self.options, schema, overwrite=overwrite)
