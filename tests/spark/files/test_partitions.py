"""Partitioned output: folder names that Spark reads as intended, and few files even for many values."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import ssbroker.spark
from ssbroker import Catalog
from ssbroker.exceptions import OutputError
from ssbroker.spark.files import parquet
from ssbroker.spark.files.parquet import TaskFiles, partition_folder

NAMES = ["销售", "Продажи", "a b", "100%", "x=y:z/w", "%E9", "[1] {2}^'\"#*?\\"]


def test_spark_and_arrow_decode_partition_values_alike(spark: SparkSession, tmp_path: Path) -> None:
    services = pa.table({"database": NAMES, "name": ["//Orders"] * len(NAMES)})
    routes = {
        "database": NAMES,
        "name": ["Orders"] * len(NAMES),
        "remote_service_name": ["//Orders"] * len(NAMES),
        "broker_instance": [None] * len(NAMES),
        "lifetime": [None] * len(NAMES),
        "address": ["LOCAL"] * len(NAMES),
        "mirror_address": [None] * len(NAMES),
    }
    ids = [bytes([place]) * 16 for place in range(len(NAMES))]
    conversations = {"conversation_id": ids, "database": NAMES, "to_service_name": ["//Orders"] * len(NAMES)}
    pq.write_table(pa.table(conversations), tmp_path / "day.parquet")
    catalog = Catalog(pa.table(routes), services=services)
    routed = tmp_path / "routed"
    ssbroker.spark.route_files(spark, tmp_path / "day.parquet", routed, catalog, partition_by="target_database")
    by_spark = spark.read.parquet(str(routed)).select("database", "target_database").collect()
    by_arrow = pq.read_table(routed).select(["database", "target_database"]).to_pylist()
    assert sorted(tuple(row) for row in by_spark) == sorted((name, name) for name in NAMES)
    assert sorted(tuple(map(str, row.values())) for row in by_arrow) == sorted((name, name) for name in NAMES)


def test_partition_values_too_long_for_a_folder_are_refused() -> None:
    assert len(partition_folder("target_database", "销" * 79).encode()) == 253
    with pytest.raises(OutputError, match=r"partition_by: the folder name for target_database '销+ exceeds 255 bytes"):
        partition_folder("target_database", "销" * 128)


def rows_of_hops(count: int, *, hops: int, first: int) -> pa.RecordBatch:
    names = [f"TCP://host{(first + place) % hops}:4022" for place in range(count)]
    return pa.record_batch(
        {
            "row": pa.array(range(first, first + count)),
            "hop": pa.array(names).dictionary_encode(),
            "same": pa.array(names).dictionary_encode(),
        }
    )


@pytest.mark.parametrize(("hops", "buffer_limit"), [(3, 1 << 26), (500, 1 << 26), (500, 1 << 15)])
def test_many_values_need_few_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hops: int, buffer_limit: int
) -> None:
    monkeypatch.setattr(parquet, "ROW_GROUP_BYTES", buffer_limit)
    batches = [rows_of_hops(2_000, hops=hops, first=2_000 * number) for number in range(10)]
    task_files = TaskFiles(tmp_path, "part", batches[0].schema, partition_by="hop", compression="snappy")
    buffered, open_files = [], []
    for batch in batches:
        task_files.write(batch)
        buffered.append(sum(part.buffered_bytes for part in task_files._partitions.values()))
        open_files.append(sum(part.is_open for part in task_files._partitions.values()))
    task_files.close()
    files = Counter(name.partition("/")[0] for name in task_files.files)
    assert len(files) == hops
    assert max(files.values()) == 1 or buffer_limit == 1 << 15
    assert max(buffered) <= buffer_limit
    assert max(open_files) <= parquet.OPEN_FILES_MAX
    found = [
        (row["row"], f"hop={row['same'].replace(':', '%3A').replace('/', '%2F')}", name.partition("/")[0])
        for name, (path, rows) in task_files.files.items()
        for row in pq.read_table(path).to_pylist()
        if rows
    ]
    assert sorted(row for row, _, _ in found) == list(range(20_000))
    assert all(same == folder for _, same, folder in found)
    paths = [path for path, _ in task_files.files.values()]
    assert len(set(paths)) == len(paths)
    in_files: list[list[int]] = [pq.read_table(path)["row"].to_numpy().tolist() for path in paths]
    assert all(numbers == sorted(numbers) for numbers in in_files)
