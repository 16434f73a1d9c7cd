"""The format `ssbroker` for Spark, which finds this module by its name: `spark.read.format("ssbroker")`.

Spark imports every module `pyspark_*` when it looks for any format: here stands only what it needs for that. Instances are read and
written by `ssbroker.spark.source`, which says so where PySpark is older than 4.2; so it is asked before what a newer one has is imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
    )
    from pyspark.sql.types import StructType

    from ssbroker.spark.source.reader import Scan
    from ssbroker.spark.source.writer import Sink

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """Instances of ssbroker: views and queues to read, dialogs to write to."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "ssbroker"

    def schema(self) -> str:
        """The columns of the view or queue."""
        from ssbroker.spark.source.options import ddl, reading  # noqa: PLC0415 - see above

        return ddl(reading(self.options).schema())

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads once."""
        scan = self._scan(schema)
        from pyspark_ssbroker.source import FilteringReader, Reader  # noqa: PLC0415 - see above

        return FilteringReader(scan) if scan.reading.pushdown else Reader(scan)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Follows a queue."""
        scan = self._scan(schema)
        from pyspark_ssbroker.source import Follower  # noqa: PLC0415 - see above

        return Follower(scan)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: FBT001 - Spark's way to call
        """Sends the rows of a DataFrame."""
        sink = self._sink(schema, overwrite=overwrite, is_stream=False)
        from pyspark_ssbroker.source import Writer  # noqa: PLC0415 - see above

        return Writer(sink)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: FBT001, N802 - the same
        """Sends the rows of a stream."""
        sink = self._sink(schema, overwrite=overwrite, is_stream=True)
        from pyspark_ssbroker.source import StreamWriter  # noqa: PLC0415 - see above

        return StreamWriter(sink)

    def _scan(self, schema: StructType) -> Scan:
        from ssbroker.spark.source.options import narrowed, reading  # noqa: PLC0415 - see above
        from ssbroker.spark.source.reader import Scan  # noqa: PLC0415 - see above

        asked = reading(self.options)
        return Scan.of(asked, narrowed(asked, _columns(schema)))

    def _sink(self, schema: StructType, *, overwrite: bool, is_stream: bool) -> Sink:
        from ssbroker.spark.source.options import writing  # noqa: PLC0415 - see above
        from ssbroker.spark.source.writer import Sink  # noqa: PLC0415 - see above

        return Sink.of(writing(self.options), _columns(schema), overwrite=overwrite, is_stream=is_stream)


def _columns(schema: StructType) -> dict[str, str]:
    """Names and types."""
    return {field.name: field.dataType.simpleString() for field in schema.fields}
