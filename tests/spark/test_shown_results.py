"""Results are shown in one line, without their internals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

import ssbroker.spark
from ssbroker import Catalog, schemas
from ssbroker.spark import ReassembledFiles, RoutedFiles, Stream, StreamKinds
from tests.spark.frames import frame


def test_results_name_their_dataframes(spark: SparkSession) -> None:
    catalog = Catalog(schemas.ROUTES.empty_table())
    columns = {"to_service_name": ["//a"], "database": ["msdb"], "message_body": [b""], "is_initiator": [True]}
    numbers = {"message_sequence_number": [0], "conversation_id": [bytes(16)]}
    sent = ssbroker.fragment(pa.table(columns | numbers), max_fragment_bytes=9)
    fragments = frame(spark, sent, partitions=1)
    kinds = StreamKinds((), None, _acknowledgements=False)
    shown: list[tuple[Any, str]] = [
        (ssbroker.spark.reassemble(fragments), "SparkReassembly(DataFrames: messages, rejected, incomplete)"),
        (ssbroker.spark.pipeline(fragments, catalog), "Pipeline(DataFrames: messages, rejected, incomplete)"),
        (ssbroker.spark.compare(fragments, catalog, catalog), "SparkComparison(DataFrames: rows)"),
        (kinds, "StreamKinds(messages, rejected, acknowledgements, expired)"),
        (Stream(fragments, kinds), "Stream(DataFrames: rows, messages, rejected, acknowledgements, expired)"),
    ]
    assert [repr(result) for result, _ in shown] == [text for _, text in shown]


def test_results_in_files_do_not_list_the_files() -> None:
    files = ("a.parquet",) * 1000
    routed = RoutedFiles(path=Path("out"), files=files, rows=1, outcomes={"LOCAL": 1}, reasons={"matched": 1})
    whole = ReassembledFiles(path=Path("out"), files=files, messages=1, rejected={}, incomplete=0)
    assert "a.parquet" not in repr(routed) + repr(whole)
