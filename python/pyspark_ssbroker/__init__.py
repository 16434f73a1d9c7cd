"""The Spark data source `ssbroker`, which Spark finds by this module's name: `spark.read.format("ssbroker")`.

Spark imports every module `pyspark_*` to look up any format, so this module imports only what the lookup needs. The
methods import the rest, first `ssbroker.spark.source`, because it checks the version of PySpark.
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
    """Reads views and queues of an instance, and sends rows as messages."""

    @classmethod
    def name(cls) -> str:
        """Returns the name of the format."""
        return "ssbroker"

    def schema(self) -> str:
        """Returns the columns of the view or queue."""
        from ssbroker.spark.source.options import ddl, parse_read_options  # noqa: PLC0415 - see above

        return ddl(parse_read_options(self.options).schema())

    def reader(self, schema: StructType) -> DataSourceReader:
        """Returns the reader of a batch."""
        scan = self._scan(schema)
        from pyspark_ssbroker.source import FilteringReader, Reader  # noqa: PLC0415 - see above

        return FilteringReader(scan) if scan.options.pushdown else Reader(scan)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Returns the reader of a stream."""
        scan = self._scan(schema)
        from pyspark_ssbroker.source import Follower  # noqa: PLC0415 - see above

        return Follower(scan)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: FBT001 - Spark's signature
        """Returns the writer of a batch."""
        sink = self._sink(schema, overwrite=overwrite, is_stream=False)
        from pyspark_ssbroker.source import Writer  # noqa: PLC0415 - see above

        return Writer(sink)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: FBT001, N802 - the same
        """Returns the writer of a stream."""
        sink = self._sink(schema, overwrite=overwrite, is_stream=True)
        from pyspark_ssbroker.source import StreamWriter  # noqa: PLC0415 - see above

        return StreamWriter(sink, schema)

    def _scan(self, schema: StructType) -> Scan:
        from ssbroker.spark.source.options import parse_read_options, select_columns  # noqa: PLC0415 - see above
        from ssbroker.spark.source.reader import Scan  # noqa: PLC0415 - see above

        options = parse_read_options(self.options)
        return Scan.of(options, select_columns(options, _columns(schema)))

    def _sink(self, schema: StructType, *, overwrite: bool, is_stream: bool) -> Sink:
        from ssbroker.spark.source.options import parse_write_options  # noqa: PLC0415 - see above
        from ssbroker.spark.source.writer import Sink  # noqa: PLC0415 - see above

        return Sink.of(parse_write_options(self.options), _columns(schema), overwrite=overwrite, is_stream=is_stream)


def _columns(schema: StructType) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in schema.fields}
