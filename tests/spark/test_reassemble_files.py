"""Files of fragments put together by Spark's workers themselves: the rows are those of the Arrow function, in their order."""

from __future__ import annotations

import gc
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import ssbroker.spark
from ssbroker import Router, schemas
from ssbroker.exceptions import OptionError, OutputError, SchemaError
from ssbroker.spark.files import reassembly
from ssbroker.spark.files.parquet import list_files, plan_splits
from ssbroker.spark.files.reassembly import BucketWriter, bucket_file_path, read_bucket
from ssbroker.spark.files.staging import run_tasks
from tests.spark.frames import world
from tests.spark.traffic import Row, in_any_order, keys_of, table_of, worlds, would_come
from tests.worlds.universe import NOW


@pytest.fixture
def source(tmp_path: Path) -> Path:
    made = tmp_path / "source"
    made.mkdir()
    return made


def written(table: pa.Table, folder: Path, *, files: int = 3) -> None:
    """In the order of the files' names the rows are as they came."""
    step = max(1, -(-table.num_rows // files))
    for number in range(files):
        pq.write_table(table.slice(number * step, step), folder / f"{number}.parquet", row_group_size=50)


def read(folder: Path) -> dict[str, list[Row]]:
    found = {}
    for kind in ("messages", "rejected", "incomplete"):
        table = pa.concat_tables([pq.read_table(file) for file in sorted((folder / kind).iterdir())])
        found[kind] = in_any_order(tuple(row.values()) for row in table.to_pylist())
    return found


@pytest.mark.parametrize("keys", ["none", "column", "mapping"])
@pytest.mark.parametrize("in_order", [True, False])
def test_contradictions_and_damage(
    spark: SparkSession, source: Path, tmp_path: Path, keys: str, *, in_order: bool
) -> None:
    fragments = worlds(1, count=25, theme="hostile", keys=keys, has_extra=True)
    fragments += worlds(2, count=25, theme="damaged", keys=keys, has_extra=True)
    options: dict[str, Any] = {"session_keys": keys_of(fragments, keys), "in_order": in_order}
    table = table_of(fragments, keys=keys, has_extra=True, text_ids=keys == "column")
    expected = would_come(table, **options)
    assert all(len(rows) > 20 for rows in expected.values())
    written(table, source)
    told = ssbroker.spark.reassemble_files(
        spark, source, tmp_path / "whole", split_bytes=1, bucket_bytes=4096, max_fragments_per_message=None, **options
    )
    assert read(tmp_path / "whole") == expected
    assert (told.messages, told.incomplete) == (len(expected["messages"]), len(expected["incomplete"]))
    assert told.rejected == Counter(row[-1] for row in expected["rejected"])
    manifest = json.loads((tmp_path / "whole" / "_manifest.json").read_text())
    assert [each["name"] for each in manifest["files"]] == list(told.files)
    assert {path.name for path in tmp_path.iterdir()} == {"source", "whole"}


def test_the_messages_of_a_direction_are_in_one_file_in_order(
    spark: SparkSession, source: Path, tmp_path: Path
) -> None:
    fragments = worlds(3, count=30, theme="honest")
    table = table_of(fragments)
    written(table.take(pa.array(range(table.num_rows - 1, -1, -1))), source)
    ssbroker.spark.reassemble_files(spark, source, tmp_path / "whole", split_bytes=1, bucket_bytes=4096)
    files = sorted((tmp_path / "whole" / "messages").iterdir())
    assert len(files) > 1
    seen: set[tuple[bytes, bool]] = set()
    for file in files:
        rows = pq.read_table(file).select(["conversation_id", "is_initiator", "message_sequence_number"]).to_pylist()
        directions: dict[tuple[bytes, bool], list[int]] = {}
        for row in rows:
            directions.setdefault((row["conversation_id"], row["is_initiator"]), []).append(
                row["message_sequence_number"]
            )
        assert all(numbers == list(range(len(numbers))) for numbers in directions.values())
        assert not seen & directions.keys()
        seen |= directions.keys()
    assert len(seen) > 20


def test_messages_are_routed_where_a_catalog_is_given(spark: SparkSession, source: Path, tmp_path: Path) -> None:
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
    written(table, source, files=1)
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
    told = ssbroker.spark.reassemble_files(spark, source, tmp_path / "whole")
    assert (told.messages, told.rejected, told.incomplete) == (0, {}, 0)
    assert pq.read_table(tmp_path / "whole" / "messages").column_names == schemas.MESSAGES.names
    assert pq.read_table(tmp_path / "whole" / "incomplete").column_names == schemas.PENDING.names


def test_what_is_wrong_is_told_of_before_a_job_starts(spark: SparkSession, source: Path, tmp_path: Path) -> None:
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
def test_what_is_dealt_out_is_compressed_where_that_saves_something(tmp_path: Path, *, has_order: bool) -> None:
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
    left = sum(file.stat().st_size for file in files) / table.nbytes
    assert left < 0.3 if has_order else 0.9 < left < 1.1


def test_a_reader_without_rows_deals_out_none(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("conversation_id", pa.binary())])
    with BucketWriter(tmp_path, schema, count=5, secret=b"any") as writer:
        pass
    assert writer.files == []
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def dealt(source: Path, tmp_path: Path) -> tuple[reassembly.FilesJob, reassembly.BucketFolders]:
    """Two readers dealt rows to 40 shares; 16 files each have room for two or three."""
    fragments = worlds(3, count=200, theme="hostile", keys="none", has_extra=False)
    written(table_of(fragments, keys="none", has_extra=False), source, files=2)
    schema, splits = plan_splits(list_files(source), split_bytes=1 << 20)
    for folder in ("attempts", "done"):
        (tmp_path / folder).mkdir()
    job = reassembly.FilesJob(
        schema=schema,
        messages=ssbroker.reassemble(schema.empty_table()).messages.schema,
        splits=tuple(splits),
        buckets=40,
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
    told = [reassembly.partition_split(job, number) for number in range(len(splits))]
    return job, reassembly.bucket_folders(json.loads(json.dumps(told)))  # as Spark brings it


def left(job: reassembly.FilesJob) -> Counter[str]:
    return Counter(path.name for path in Path(job.attempts).glob("*/[0-9]*.*"))


def test_what_was_dealt_out_goes_when_all_shares_beside_it_are_done(
    dealt: tuple[reassembly.FilesJob, reassembly.BucketFolders],
) -> None:
    job, readers = dealt
    files = [f"{number}.{kind}" for number in range(16) for kind in ("arrow", "places")]
    assert left(job) == dict.fromkeys(files, 2)
    for bucket in (0, 2, 3):
        reassembly.reassemble_bucket(job, readers, bucket)
    assert left(job) == dict.fromkeys(files, 2)
    reassembly.reassemble_bucket(job, readers, 1)
    assert left(job) == dict.fromkeys(files[2:], 2)
    for bucket in reversed(range(4, 40)):
        reassembly.reassemble_bucket(job, readers, bucket)
    assert left(job) == {}


def test_what_a_reader_tells_does_not_grow_with_the_number_of_shares(
    dealt: tuple[reassembly.FilesJob, reassembly.BucketFolders],
) -> None:
    """It is told to every task: of 7,200 readers to 7,200 shares each task unpickled 670 MB."""
    job, _ = dealt
    told = [reassembly.partition_split(replace(job, buckets=buckets), 0) for buckets in (40, 4000)]
    assert len(json.dumps(told[1])) == len(json.dumps(told[0])) < 250


def test_a_share_that_is_put_together_again_comes_to_the_same(
    dealt: tuple[reassembly.FilesJob, reassembly.BucketFolders],
) -> None:
    """Spark runs a task anew whose word was lost, even when what it had read is gone."""
    job, readers = dealt
    told = [reassembly.reassemble_bucket(job, readers, number) for number in range(40)]
    assert [reassembly.reassemble_bucket(job, readers, number) for number in range(40)] == told
    assert all(Path(path).is_file() for one in told for _, path, _ in one["files"])


def test_of_two_tries_at_once_the_slower_takes_the_word_of_the_faster(
    dealt: tuple[reassembly.FilesJob, reassembly.BucketFolders], monkeypatch: pytest.MonkeyPatch
) -> None:
    job, readers = dealt
    faster = {}

    def overtaken(*given: Any) -> Any:
        monkeypatch.undo()
        faster.update({number: reassembly.reassemble_bucket(job, readers, number) for number in (0, 1, 2)})
        return read_bucket(*given)

    monkeypatch.setattr(reassembly, "read_bucket", overtaken)
    assert reassembly.reassemble_bucket(job, readers, 0) == faster[0]


def test_a_file_that_is_gone_before_its_time_is_an_error(
    dealt: tuple[reassembly.FilesJob, reassembly.BucketFolders],
) -> None:
    job, readers = dealt
    bucket_file_path(Path(readers[0][0]), 2).unlink()
    with pytest.raises(FileNotFoundError):
        reassembly.reassemble_bucket(job, readers, 5)
    assert reassembly.reassemble_bucket(job, readers, 9)["files"]


def test_what_workers_import_is_not_searched_for_garbage_after_each_task(spark: SparkSession) -> None:
    told = run_tasks(spark, 2, lambda number: {"number": number, "kept": gc.get_freeze_count()})
    assert [one["number"] for one in told] == [0, 1]
    assert all(one["kept"] > 10_000 for one in told)
