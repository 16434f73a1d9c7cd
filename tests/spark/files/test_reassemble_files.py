"""`reassemble_files` gives the rows of the Arrow function, in their order."""

from __future__ import annotations

import gc
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import ssbroker.spark
from ssbroker import Router, schemas
from ssbroker.exceptions import OptionError, OutputError, SchemaError
from ssbroker.spark.files import bucket_files, reassembly
from ssbroker.spark.files.bucket_files import BucketWriter, bucket_file_path, bucket_numbers, read_bucket
from ssbroker.spark.files.parquet import list_files, plan_splits
from ssbroker.spark.files.staging import run_tasks
from tests.spark.frames import world
from tests.spark.traffic import Row, expected_rows, fragment_table, random_fragments, session_keys_for, sorted_rows
from tests.worlds.universe import NOW


@pytest.fixture
def source(tmp_path: Path) -> Path:
    made = tmp_path / "source"
    made.mkdir()
    return made


def write_files(table: pa.Table, folder: Path, *, files: int = 3) -> None:
    """Writes files whose rows, in the order of the file names, are the rows of the table."""
    step = max(1, -(-table.num_rows // files))
    for number in range(files):
        pq.write_table(table.slice(number * step, step), folder / f"{number}.parquet", row_group_size=50)


def read(folder: Path) -> dict[str, list[Row]]:
    found = {}
    for kind in ("messages", "rejected", "incomplete"):
        table = pa.concat_tables([pq.read_table(file) for file in sorted((folder / kind).iterdir())])
        found[kind] = sorted_rows(tuple(row.values()) for row in table.to_pylist())
    return found


@pytest.mark.parametrize("keys", ["none", "column", "mapping"])
@pytest.mark.parametrize("in_order", [True, False])
def test_contradictions_and_damage(
    spark: SparkSession, source: Path, tmp_path: Path, keys: str, *, in_order: bool
) -> None:
    fragments = random_fragments(1, count=25, theme="hostile", keys=keys, has_extra=True)
    fragments += random_fragments(2, count=25, theme="damaged", keys=keys, has_extra=True)
    options: dict[str, Any] = {"session_keys": session_keys_for(fragments, keys), "in_order": in_order}
    table = fragment_table(fragments, keys=keys, has_extra=True, text_ids=keys == "column")
    expected = expected_rows(table, **options)
    assert all(len(rows) > 20 for rows in expected.values())
    write_files(table, source)
    result = ssbroker.spark.reassemble_files(
        spark, source, tmp_path / "whole", split_bytes=1, bucket_bytes=4096, max_fragments_per_message=None, **options
    )
    assert read(tmp_path / "whole") == expected
    assert (result.messages, result.incomplete) == (len(expected["messages"]), len(expected["incomplete"]))
    assert result.rejected == Counter(row[-1] for row in expected["rejected"])
    manifest = json.loads((tmp_path / "whole" / "_manifest.json").read_text())
    assert [each["name"] for each in manifest["files"]] == list(result.files)
    assert {path.name for path in tmp_path.iterdir()} == {"source", "whole"}


def test_directions_are_ordered_within_one_file(spark: SparkSession, source: Path, tmp_path: Path) -> None:
    fragments = random_fragments(3, count=30, theme="honest")
    table = fragment_table(fragments)
    write_files(table.take(pa.array(range(table.num_rows - 1, -1, -1))), source)
    ssbroker.spark.reassemble_files(spark, source, tmp_path / "whole", split_bytes=1, bucket_bytes=4096)
    files = sorted((tmp_path / "whole" / "messages").iterdir())
    assert len(files) > 1
    all_directions: set[tuple[bytes, bool]] = set()
    for file in files:
        rows = pq.read_table(file).select(["conversation_id", "is_initiator", "message_sequence_number"]).to_pylist()
        directions: dict[tuple[bytes, bool], list[int]] = {}
        for row in rows:
            directions.setdefault((row["conversation_id"], row["is_initiator"]), []).append(
                row["message_sequence_number"]
            )
        assert all(numbers == list(range(len(numbers))) for numbers in directions.values())
        assert not all_directions & directions.keys()
        all_directions |= directions.keys()
    assert len(all_directions) > 20


def test_messages_are_routed_with_a_catalog(spark: SparkSession, source: Path, tmp_path: Path) -> None:
    catalog, conversations = world(4, conversations=40)
    numbered: dict[str, Any] = {
        "message_sequence_number": pa.array([0] * 40, pa.int64()),
        "fragment_number": pa.array([0] * 40, pa.int32()),
        "fragment_count": pa.array([1] * 40, pa.int32()),
    }
    table = conversations
    for name, column in numbered.items():
        table = table.append_column(name, column)
    ids = [number.to_bytes(16, "big") for number in range(40)]
    table = table.set_column(
        table.schema.get_field_index("conversation_id"), "conversation_id", pa.array(ids, pa.binary(16))
    )
    write_files(table, source, files=1)
    ssbroker.spark.reassemble_files(spark, source, tmp_path / "whole", catalog=catalog, now=NOW)
    found = pq.read_table(tmp_path / "whole" / "messages")
    decided = Router(catalog).route(found.select([*conversations.column_names]), now=NOW)
    assert found.num_rows == 40
    plain = [
        {name: row[name] for name in schemas.DECISIONS.names}
        for row in found.select(schemas.DECISIONS.names).to_pylist()
    ]
    assert plain == decided.to_pylist()


def test_no_fragments_give_empty_tables(spark: SparkSession, source: Path, tmp_path: Path) -> None:
    pq.write_table(schemas.FRAGMENTS.empty_table(), source / "none.parquet")
    result = ssbroker.spark.reassemble_files(spark, source, tmp_path / "whole")
    assert (result.messages, result.rejected, result.incomplete) == (0, {}, 0)
    assert pq.read_table(tmp_path / "whole" / "messages").column_names == schemas.MESSAGES.names
    assert pq.read_table(tmp_path / "whole" / "incomplete").column_names == schemas.PENDING.names


def test_invalid_arguments_are_reported_before_a_job_starts(spark: SparkSession, source: Path, tmp_path: Path) -> None:
    target = tmp_path / "whole"
    pq.write_table(schemas.FRAGMENTS.empty_table().drop_columns(["message_body"]), source / "none.parquet")
    with pytest.raises(SchemaError, match="message_body"):
        ssbroker.spark.reassemble_files(spark, source, target)
    pq.write_table(schemas.FRAGMENTS.empty_table(), source / "none.parquet")
    with pytest.raises(OptionError, match="max_message_bytes"):
        ssbroker.spark.reassemble_files(spark, source, target, max_message_bytes=2**31)
    target.mkdir()
    with pytest.raises(OutputError, match="already exists"):
        ssbroker.spark.reassemble_files(spark, source, target)


@pytest.mark.parametrize("has_order", [True, False])
def test_buckets_are_compressed_if_it_saves_space(tmp_path: Path, *, has_order: bool) -> None:
    rng = np.random.default_rng(1)
    rows = [(rng.bytes(16), number, b"<Order/>" * 60 if has_order else rng.bytes(500)) for number in range(3000)]
    columns = [pa.array(list(column)) for column in zip(*rows, strict=True)]
    table = pa.table(columns, ["conversation_id", "message_sequence_number", "message_body"])
    with BucketWriter(tmp_path, table.schema, count=5, secret=b"any") as writer:
        for batch in table.to_batches(700):
            writer.write(batch)
    files = [bucket_file_path(tmp_path, number) for number in writer.files]
    found = [pa.Table.from_batches(read_bucket(file, bucket)) for bucket, file in enumerate(files)]
    assert sorted(pa.concat_tables(found).to_pylist(), key=str) == sorted(table.to_pylist(), key=str)
    ratio = sum(file.stat().st_size for file in files) / table.nbytes
    assert ratio < 0.3 if has_order else 0.9 < ratio < 1.1


def test_a_split_without_rows_writes_no_bucket_files(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("conversation_id", pa.binary())])
    with BucketWriter(tmp_path, schema, count=5, secret=b"any") as writer:
        pass
    assert writer.files == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
@pytest.mark.parametrize("is_dictionary", [False, True])
def test_each_conversation_has_one_bucket_however_its_id_is_written(kind: Any, *, is_dictionary: bool) -> None:
    ids = [str(UUID(int=number)) for number in range(50)]
    braced = [f"{{{each.upper()}}}" for each in ids]
    columns: list[Any] = [pa.array(texts).cast(kind) for texts in (ids, braced)]
    if is_dictionary:
        columns = [pa.DictionaryArray.from_arrays(pa.array(range(50), pa.int32()), column) for column in columns]
    plain = bucket_numbers(pa.table({"conversation_id": ids}), count=7, secret=b"any")
    for column in columns:
        assert bucket_numbers(pa.table({"conversation_id": column}), count=7, secret=b"any") == plain


def job_of(source: Path, tmp_path: Path, *, buckets: int) -> reassembly.FilesJob:
    schema, splits = plan_splits(list_files(source), split_bytes=1 << 20)
    for folder in ("attempts", "done"):
        (tmp_path / folder).mkdir()
    return reassembly.FilesJob(
        schema=schema,
        messages=ssbroker.reassemble(schema.empty_table()).messages.schema,
        splits=tuple(splits),
        buckets=buckets,
        secret=b"any",
        attempts=str(tmp_path / "attempts"),
        done=str(tmp_path / "done"),
        compression="none",
        in_order=True,
        max_message_bytes=1 << 20,
        max_fragments_per_message=None,
        session_keys=None,
        routing=None,
    )


@pytest.fixture
def partitioned_job(source: Path, tmp_path: Path) -> tuple[reassembly.FilesJob, reassembly.BucketFolders]:
    """The fragments of two splits in 40 buckets; each of 16 files holds two or three buckets."""
    fragments = random_fragments(3, count=200, theme="hostile", keys="none", has_extra=False)
    write_files(fragment_table(fragments, keys="none", has_extra=False), source, files=2)
    job = job_of(source, tmp_path, buckets=40)
    results = [reassembly.partition_split(job, number) for number in range(len(job.splits))]
    return job, reassembly.bucket_folders(json.loads(json.dumps(results)))  # as run_tasks returns it


def remaining_files(job: reassembly.FilesJob) -> Counter[str]:
    return Counter(path.name for path in Path(job.attempts).glob("*/[0-9]*.*"))


def test_bucket_files_are_removed_when_all_their_buckets_are_done(
    partitioned_job: tuple[reassembly.FilesJob, reassembly.BucketFolders],
) -> None:
    job, folders = partitioned_job
    files = [f"{number}.{kind}" for number in range(16) for kind in ("arrow", "places")]
    assert remaining_files(job) == dict.fromkeys(files, 2)
    for bucket in (0, 2, 3):
        reassembly.reassemble_bucket(job, folders, bucket)
    assert remaining_files(job) == dict.fromkeys(files, 2)
    reassembly.reassemble_bucket(job, folders, 1)
    assert remaining_files(job) == dict.fromkeys(files[2:], 2)
    for bucket in reversed(range(4, 40)):
        reassembly.reassemble_bucket(job, folders, bucket)
    assert remaining_files(job) == {}


def test_the_result_of_a_split_does_not_grow_with_the_bucket_count(
    partitioned_job: tuple[reassembly.FilesJob, reassembly.BucketFolders],
) -> None:
    """Every task gets this result: for 7,200 splits and 7,200 buckets, each task used to unpickle 670 MB."""
    job, _ = partitioned_job
    few, many = (reassembly.partition_split(replace(job, buckets=buckets), 0) for buckets in (40, 4000))
    assert len(json.dumps(many)) == len(json.dumps(few)) < 250


def test_a_repeated_bucket_task_returns_the_same_result(
    partitioned_job: tuple[reassembly.FilesJob, reassembly.BucketFolders],
) -> None:
    """Spark runs a task again if its result was lost, even if the task's input has been removed."""
    job, folders = partitioned_job
    results = [reassembly.reassemble_bucket(job, folders, number) for number in range(40)]
    assert [reassembly.reassemble_bucket(job, folders, number) for number in range(40)] == results
    assert all(Path(path).is_file() for result in results for _, path, _ in result["files"])


def test_the_slower_of_two_attempts_returns_the_result_of_the_faster(
    partitioned_job: tuple[reassembly.FilesJob, reassembly.BucketFolders], monkeypatch: pytest.MonkeyPatch
) -> None:
    job, folders = partitioned_job
    faster = {}

    def overtaken_by_another_attempt(*given: Any) -> Any:
        monkeypatch.undo()
        faster.update({number: reassembly.reassemble_bucket(job, folders, number) for number in (0, 1, 2)})
        return read_bucket(*given)

    monkeypatch.setattr(reassembly, "read_bucket", overtaken_by_another_attempt)
    assert reassembly.reassemble_bucket(job, folders, 0) == faster[0]


def test_a_missing_bucket_file_is_an_error(
    partitioned_job: tuple[reassembly.FilesJob, reassembly.BucketFolders],
) -> None:
    job, folders = partitioned_job
    bucket_file_path(Path(folders[0][0]), 2).unlink()
    with pytest.raises(FileNotFoundError):
        reassembly.reassemble_bucket(job, folders, 5)
    assert reassembly.reassemble_bucket(job, folders, 9)["files"]


def test_imported_modules_are_frozen_for_garbage_collection(spark: SparkSession) -> None:
    results = run_tasks(spark, 2, lambda number: {"number": number, "frozen": gc.get_freeze_count()})
    assert [result["number"] for result in results] == [0, 1]
    assert all(result["frozen"] > 10_000 for result in results)


def test_row_groups_may_have_different_dictionaries(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket file can contain only one dictionary of a column."""
    monkeypatch.setattr(bucket_files, "buffer_bytes", lambda _count: 1)
    monkeypatch.setattr(reassembly, "BATCH_ROWS", 64)
    count, group_rows = 128, 64
    messages = {
        "conversation_id": [bytes(16)] * count,
        "is_initiator": [True] * count,
        "message_sequence_number": pa.array(range(count), pa.int64()),
        "message_body": [b"a"] * count,
    }
    fragments = ssbroker.fragment(pa.table(messages), max_fragment_bytes=1)
    regions: Any = pa.array([f"region {number}" for number in range(count)])
    parts = [
        with_regions(fragments.slice(first, group_rows), regions.slice(first, group_rows)) for first in (0, group_rows)
    ]
    with pq.ParquetWriter(source / "all.parquet", parts[0].schema) as writer:
        for part in parts:
            writer.write_table(part)
    job = job_of(source, tmp_path, buckets=1)
    folders = reassembly.bucket_folders([reassembly.partition_split(job, 0)])
    ((_, path, _), *_) = reassembly.reassemble_bucket(job, folders, 0)["files"]
    found = pq.read_table(path).select(["region", "nested"]).to_pylist()
    assert found == [{"region": region, "nested": [region]} for region in regions.to_pylist()]


def with_regions(fragments: pa.Table, regions: Any) -> pa.Table:
    """Adds the regions as a dictionary and as lists with a dictionary."""
    encoded = regions.dictionary_encode()
    nested: Any = pa.ListArray.from_arrays(pa.array(range(len(regions) + 1), pa.int32()), encoded)
    return fragments.append_column("region", encoded).append_column("nested", nested)
