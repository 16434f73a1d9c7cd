"""Runs every feature once on the installed libraries, and prints a digest of its rows: `python -m tests.compat.matrix`.

It runs in an environment that has only the wheel and what the lane installs. The data are the same everywhere.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

import ssbroker

NOW: Final = datetime(2026, 11, 20, 12, tzinfo=UTC)
_SERVICES: Final = [f"//shop.example/{number}" for number in range(40)]
QUICK_JAVA: Final = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def digest(rows: Iterable[Any]) -> str:
    """Identifies rows whatever their order."""
    lines = sorted(repr(_plain(row)) for row in rows)
    return f"{len(lines)}:{hashlib.sha256(chr(10).join(lines).encode()).hexdigest()[:12]}"


def _plain(value: Any) -> Any:
    if hasattr(value, "asDict"):
        value = value.asDict()
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in sorted(value.items())}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if isinstance(value, datetime):
        return (value.astimezone(UTC) if value.tzinfo else value).replace(tzinfo=None).isoformat()
    return value


def catalog(*, changed: bool = False) -> ssbroker.Catalog:
    """A catalog with each class of address, an expired route, a mirrored one, and services."""
    rows: list[dict[str, Any]] = []
    for number, service in enumerate(_SERVICES[:-4]):
        address = ["TCP://one", "TCP://two:5022", "LOCAL", "TRANSPORT"][number % 4]
        rows.append(
            {
                "database": "Sales" if number % 3 else "msdb",
                "name": f"R{number}",
                "remote_service_name": service,
                "broker_instance": (number % 5).to_bytes(16, "big") if number % 2 else None,
                "lifetime": NOW + timedelta(days=number - 5) if number % 7 == 0 else None,
                "address": "TCP://elsewhere" if changed and number % 6 == 0 else address,
                "mirror_address": "TCP://mirror" if address == "TCP://one" and number % 2 else None,
            }
        )
    databases = pa.Table.from_pylist(
        [
            {"name": name, "service_broker_guid": name.encode().rjust(16, b"\0"), "is_broker_enabled": True}
            for name in ("Sales", "Stock")
        ]
    )
    services = pa.Table.from_pylist([{"database": "Stock", "name": name} for name in _SERVICES[::5]])
    routes = pa.schema([field for field in ssbroker.schemas.ROUTES if field.name != "route_id"])
    return ssbroker.Catalog(pa.Table.from_pylist(rows, schema=routes), databases, services)


def conversations() -> list[tuple[Any, ...]]:
    """Rows of `CONVERSATION_COLUMNS`, with extra columns of many types."""
    draw = random.Random(33)
    return [
        (
            draw.randbytes(16),
            ["Sales", "Stock", None][number % 3],
            draw.choice(_SERVICES),
            (number % 5).to_bytes(16, "big") if number % 2 else None,
            number % 4 == 0,
            number,
            f"text {number} \N{EURO SIGN}" if number % 9 else None,
            timedelta(days=number, microseconds=7),
            datetime(2026, 1, 1, 2, 3, 4, 5) + timedelta(hours=number),  # noqa: DTZ001 - in the zone of the session
            [number, None],
            {"a": number % 3 == 0, "b": bytes([number % 256])},
        )
        for number in range(1200)
    ]


CONVERSATION_COLUMNS: Final = (
    "conversation_id binary, database string, to_service_name string, to_broker_instance binary, is_initiator boolean, "
    "row int, note string, span interval day to second, at timestamp, parts array<int>, both struct<a: boolean, b: binary>"
)


def fragments() -> pa.Table:
    """Fragments of messages with routing columns: some lost, doubled or damaged, in no order."""
    draw = random.Random(7)
    count = 600
    messages = pa.table(
        {
            "conversation_id": pa.array([(number % 50).to_bytes(16, "big") for number in range(count)], pa.binary()),
            "is_initiator": pa.array([True] * count),
            "message_sequence_number": pa.array([number // 50 for number in range(count)], pa.int64()),
            "message_body": pa.array([draw.randbytes(draw.randrange(1, 900)) for _ in range(count)], pa.binary()),
            "database": pa.array(["Sales"] * count),
            "to_service_name": pa.array([_SERVICES[number % 40] for number in range(count)]),
        }
    )
    rows = ssbroker.fragment(messages, max_fragment_bytes=100).to_pylist()
    for number, row in enumerate(rows):
        if number % 97 == 5:
            row["message_body"] = bytes(len(row["message_body"]))
    kept = [row for number, row in enumerate(rows) if number % 211]
    kept += kept[::50]
    draw.shuffle(kept)
    kinds = {"fragment_number": pa.int32(), "fragment_count": pa.int32()}
    table = pa.Table.from_pylist(kept)
    return table.cast(pa.schema([field.with_type(kinds.get(field.name, field.type)) for field in table.schema]))


FRAGMENT_COLUMNS: Final = (
    "conversation_id binary, is_initiator boolean, message_sequence_number bigint, fragment_number int, fragment_count int, "
    "message_body binary, message_signature binary, fragment_signature binary, database string, to_service_name string"
)


class Library:
    """The features that need only pyarrow."""

    def route(self) -> str:
        names = [each.split()[0] for each in CONVERSATION_COLUMNS.split(", ")[:5]]
        rows = [dict(zip(names, row, strict=False)) for row in conversations()]
        return digest(ssbroker.Router(catalog()).route(pa.Table.from_pylist(rows), now=NOW).to_pylist())

    def reassemble(self) -> str:
        done = ssbroker.reassemble(fragments())
        return digest([*done.messages.to_pylist(), *done.rejected.to_pylist(), *done.pending.to_pylist()])

    def md5(self) -> str:
        """The digests of a table's only column."""
        return digest(
            ssbroker.md5(pa.table({"value": [bytes([number]) * number for number in range(100)]})).to_pylist()
        )

    def explain(self) -> str:
        explained = ssbroker.Router(catalog()).explain(_SERVICES[0], database="Sales", now=NOW)
        return digest([str(explained)])

    def lint(self) -> str:
        from ssbroker import diagnose  # noqa: PLC0415 - each feature imports what it needs

        return digest([finding.to_dict() for finding in diagnose.lint(catalog(), at=NOW)])

    def broker(self) -> str:
        """Sends and receives in an instance."""
        with tempfile.TemporaryDirectory() as folder, made_instance(Path(folder, "shop")) as instance:
            sales = instance.database("Sales")
            with sales.transaction() as transaction:
                dialog = transaction.begin_dialog("//Shop", "//Orders", encryption=False)
                for number in range(200):
                    transaction.send(dialog, bytes([number]) * 40 * number)
            with sales.transaction() as transaction:
                received = transaction.receive("Orders")
            return digest(received.select(["message_sequence_number", "message_body"]).to_pylist())


def made_instance(folder: Path) -> Any:
    """An instance with two services in one database."""
    instance = ssbroker.Instance.create(folder, name="shop")
    instance.execute(
        """
        CREATE DATABASE Sales
        GO
        USE Sales
        CREATE QUEUE Orders
        CREATE QUEUE Replies
        CREATE SERVICE [//Orders] ON QUEUE Orders ([DEFAULT])
        CREATE SERVICE [//Shop] ON QUEUE Replies
        """
    )
    return instance


class Spark:
    """The features on Spark."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def session(self) -> Any:
        from pyspark.sql import SparkSession  # noqa: PLC0415 - a lane may be without

        builder: Any = SparkSession.builder
        if "SPARK_REMOTE" not in os.environ:
            builder = builder.master("local[1, 4]")  # a task is tried four times, as on a cluster
            builder = builder.config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
        return (
            builder.config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "Europe/Berlin")
            .config("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
            .config("spark.sql.streaming.noDataMicroBatches.enabled", "false")
            .getOrCreate()
        )

    @cached_property
    def conversations(self) -> Any:
        return self.session.createDataFrame(conversations(), CONVERSATION_COLUMNS).repartition(2)

    @cached_property
    def fragments(self) -> Any:
        names = [each.split()[0] for each in FRAGMENT_COLUMNS.split(", ")]
        rows = [tuple(row.get(name) for name in names) for row in fragments().to_pylist()]
        return self.session.createDataFrame(rows, FRAGMENT_COLUMNS).repartition(2)

    def route(self) -> str:
        import ssbroker.spark  # noqa: PLC0415 - a lane may be without PySpark

        routed = ssbroker.spark.route(self.conversations, catalog(), now=NOW, engine="arrow")
        assert routed.columns[: len(self.conversations.columns)] == self.conversations.columns
        return digest(routed.collect())

    def route_native(self) -> str:
        """The joins of `engine="native"`; the digest is that of `route`."""
        import ssbroker.spark  # noqa: PLC0415 - as above

        arrow = ssbroker.spark.route(self.conversations, catalog(), now=NOW, engine="arrow")
        native = ssbroker.spark.route(self.conversations, catalog(), now=NOW, engine="native")
        assert native.dtypes == arrow.dtypes
        found = digest(native.collect())
        assert found == digest(arrow.collect())
        return found

    def route_invalid_text(self) -> str:
        """Text that is not UTF-8 matches no service, and passes through."""
        import ssbroker.spark  # noqa: PLC0415 - as above

        rows = self.session.createDataFrame(
            [(bytes(16), b"\xff//a"), (bytes(16), b"ok")], "conversation_id binary, raw binary"
        )
        text = rows.selectExpr(
            "conversation_id",
            "'Sales' as database",
            "raw",
            "cast(raw as string) as extra",
            "'a name with a dot' as `dotted.name`",
            "'//none' as to_service_name",
        )
        found = set()
        for engine in ("arrow", "native"):
            routed = ssbroker.spark.route(text, catalog(), now=NOW, engine=engine)
            rows = routed.selectExpr("raw", "cast(extra as binary) as extra", "`dotted.name`", "outcome", "reason")
            found.add(digest(rows.collect()))
        assert len(found) == 1
        return found.pop()

    def route_udf(self) -> str:
        import ssbroker.spark  # noqa: PLC0415 - as above

        self.session.udf.register("where_to", ssbroker.spark.route_udf(self.session, catalog(), now=NOW))
        self.conversations.createOrReplaceTempView("waiting")
        arguments = "conversation_id, database, to_service_name, to_broker_instance, is_initiator"
        return digest(self.session.sql(f"select row, where_to({arguments}) as decision from waiting").collect())

    def compare(self) -> str:
        import ssbroker.spark  # noqa: PLC0415 - as above

        compared = ssbroker.spark.compare(self.conversations, catalog(), catalog(changed=True), at=NOW)
        return digest([json.dumps(compared.comparison().to_dict(), default=str, sort_keys=True)])

    def reassemble(self) -> str:
        import ssbroker.spark  # noqa: PLC0415 - as above

        done = ssbroker.spark.reassemble(self.fragments).persist()
        rows = [*done.messages.collect(), *done.rejected.collect(), *done.incomplete.collect()]
        done.unpersist()
        return digest(rows)

    def pipeline(self) -> str:
        import ssbroker.spark  # noqa: PLC0415 - as above

        return digest(ssbroker.spark.pipeline(self.fragments, catalog(), now=NOW).messages.collect())

    def route_files(self) -> str:
        import ssbroker.spark  # noqa: PLC0415 - as above

        self.conversations.write.parquet(str(self.folder / "waiting"))
        ssbroker.spark.route_files(self.session, self.folder / "waiting", self.folder / "routed", catalog(), now=NOW)
        return digest(self.session.read.parquet(str(self.folder / "routed")).collect())

    def reassemble_files(self) -> str:
        import ssbroker.spark  # noqa: PLC0415 - as above

        self.fragments.write.parquet(str(self.folder / "fragments"))
        ssbroker.spark.reassemble_files(
            self.session, self.folder / "fragments", self.folder / "whole", catalog=catalog(), now=NOW
        )
        found = []
        for kind in sorted(path.name for path in (self.folder / "whole").iterdir() if path.is_dir()):
            found += self.session.read.parquet(str(self.folder / "whole" / kind)).collect()
        return digest(found)

    def own_map_in_arrow(self) -> str:
        """A function of the user's own that calls the library."""
        routes = catalog()

        def run(batches: Any) -> Any:
            router = ssbroker.Router(routes)
            for batch in batches:
                decided = router.route(batch, now=NOW)
                columns = [
                    batch.column(5),
                    decided["outcome"].cast(pa.string()),
                    decided["next_hop_address"].cast(pa.string()),
                ]
                yield pa.RecordBatch.from_arrays(columns, names=["row", "outcome", "next_hop_address"])

        return digest(self.conversations.mapInArrow(run, "row int, outcome string, next_hop_address string").collect())

    def own_pandas_udf(self) -> str:
        """A pandas UDF of the user's own that calls the library."""
        import pandas as pd  # noqa: PLC0415 - a lane may be without
        from pyspark.sql import functions as sf  # noqa: PLC0415 - the same

        routes = catalog()

        def outcome(ids: pd.Series, services: pd.Series) -> pd.Series:
            rows = pa.RecordBatch.from_pydict(
                {
                    "conversation_id": pa.array(ids, pa.binary()),
                    "database": pa.array(["Sales"] * len(ids), pa.string()),
                    "to_service_name": pa.array(services, pa.string()),
                }
            )
            return ssbroker.Router(routes).route(rows, now=NOW)["outcome"].cast(pa.string()).to_pandas()

        outcome.__annotations__ = {"ids": pd.Series, "services": pd.Series, "return": pd.Series}
        functions: Any = sf  # its stubs lack pandas_udf
        udf = functions.pandas_udf(outcome, "string")
        return digest(self.conversations.select("row", udf("conversation_id", "to_service_name")).collect())

    def _arrived(self, name: str) -> Any:
        """A stream of the fragments, in two files."""
        source = self.folder / f"{name}-source"
        source.mkdir()
        for number, part in enumerate((fragments().slice(0, 1500), fragments().slice(1500))):
            pq.write_table(part, source / f"{number}.parquet")
        return self.session.readStream.schema(FRAGMENT_COLUMNS).option("maxFilesPerTrigger", 1).parquet(str(source))

    def _written(self, rows: Any, name: str) -> list[Any]:
        out = self.folder / f"{name}-out"
        writer = rows.writeStream.format("parquet").option(
            "checkpointLocation", str(self.folder / f"{name}-checkpoint")
        )
        writer.trigger(availableNow=True).start(str(out)).awaitTermination()
        found: list[Any] = self.session.read.parquet(str(out)).collect()
        return found

    def route_of_a_stream(self) -> str:
        """`route` of a streaming DataFrame."""
        import ssbroker.spark  # noqa: PLC0415 - as above

        source = self.folder / "route-source"
        self.conversations.drop("span").write.parquet(str(source))
        arriving = self.session.readStream.schema(self.conversations.drop("span").schema).parquet(str(source))
        return digest(self._written(ssbroker.spark.route(arriving, catalog(), now=NOW), "route"))

    def pipeline_in_foreach_batch(self) -> str:
        """`pipeline` of each micro-batch; messages do not cross micro-batches."""
        import ssbroker.spark  # noqa: PLC0415 - as above

        written = str(self.folder / "each-messages")

        def each(batch: Any, _number: int) -> None:
            ssbroker.spark.pipeline(batch, catalog(), now=NOW).messages.write.mode("append").parquet(written)

        arriving = self._arrived("each")
        query = arriving.writeStream.foreachBatch(each).trigger(availableNow=True)
        query.option("checkpointLocation", str(self.folder / "each-checkpoint")).start().awaitTermination()
        return digest(self.session.read.parquet(written).collect())

    def stream(self) -> str:
        import ssbroker.spark  # noqa: PLC0415 - as above

        messages = ssbroker.spark.stream(self._arrived("stream"), catalog(), buckets=3).messages
        return digest(
            self._written(
                messages.select("conversation_id", "message_sequence_number", "message_body", "outcome"), "stream"
            )
        )

    def stream_state(self) -> str:
        """What waits in the state of the query of `stream`; the number of attempts depends on the micro-batches."""
        import ssbroker.spark  # noqa: PLC0415 - as above

        waiting = ssbroker.spark.stream_state(self.session, self.folder / "stream-checkpoint")
        return digest(waiting.drop("bucket", "since", "until", "tries").collect())

    def route_stream(self) -> str:
        import ssbroker.spark  # noqa: PLC0415 - as above

        source = self.folder / "stream-of-conversations"
        self.conversations.drop("span").write.parquet(str(source))
        arriving = self.session.readStream.schema(self.conversations.drop("span").schema).parquet(str(source))
        routed = ssbroker.spark.route_stream(arriving, catalog(), tie_break="first", buckets=3)
        return digest(self._written(routed.select("row", "outcome", "note"), "routes"))

    def data_source(self) -> str:
        """Writes rows to an instance, and reads them from its queue."""
        folder = self.folder / "shop"
        made_instance(folder).close()
        orders = self.session.createDataFrame(
            [(bytes([number]) * 30, f"dialog {number % 7}", number) for number in range(200)],
            "message_body binary, dialog string, position int",
        ).repartition(2)
        to_orders = {"database": "Sales", "from_service": "//Shop", "to_service": "//Orders"}
        orders.write.format("ssbroker").options(**to_orders).mode("append").save(str(folder))
        queue = self.session.read.format("ssbroker").options(database="Sales", queue="Orders").load(str(folder))
        return digest(queue.select("message_sequence_number", "message_body").collect())

    def data_source_stream(self) -> str:
        """Reads the queue as a stream, and sends its rows on as a stream; replayed batches send nothing."""
        folder = self.folder / "shop"
        arriving = (
            self.session.readStream.format("ssbroker").options(database="Sales", queue="Orders").load(str(folder))
        )
        rows = arriving.selectExpr("message_body", "'all' as dialog", "queuing_order as position")
        to_replies = {"database": "Sales", "from_service": "//Orders", "to_service": "//Stock"}
        with ssbroker.Instance.open(folder) as instance:
            instance.execute("USE Sales\nCREATE QUEUE Stock\nCREATE SERVICE [//Stock] ON QUEUE Stock ([DEFAULT])")
        query = rows.writeStream.format("ssbroker").options(**to_replies, path=str(folder)).trigger(availableNow=True)
        query.option("checkpointLocation", str(self.folder / "queue-checkpoint")).start().awaitTermination()
        queue = self.session.read.format("ssbroker").options(database="Sales", queue="Stock").load(str(folder))
        return digest(queue.select("message_sequence_number", "message_body").collect())


def features() -> dict[str, tuple[str, Callable[[Any], str]]]:
    """The class and the function of each feature, in the order of the table."""
    found: dict[str, tuple[str, Callable[[Any], str]]] = {}
    for kind in (Library, Spark):
        for name, function in vars(kind).items():
            if not name.startswith("_") and callable(function):
                found[f"{'spark.' if kind is Spark else ''}{name}"] = (kind.__name__, function)
    return found


def main(selected: list[str]) -> None:
    """Prints the digests, or why there is none, as JSON."""
    results: dict[str, dict[str, str]] = {}
    os.environ.setdefault("SPARK_SUBMIT_OPTS", QUICK_JAVA)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    has_spark = importlib.util.find_spec("pyspark") is not None
    with tempfile.TemporaryDirectory() as folder:
        library, spark = Library(), Spark(Path(folder))
        for name, (kind, function) in features().items():
            if (selected and name not in selected) or (kind == "Spark" and not has_spark):
                continue
            try:
                results[name] = {"digest": function(library if kind == "Library" else spark)}
            except Exception as error:  # noqa: BLE001 - it is part of the result
                text = str(error).strip().splitlines() or [""]
                results[name] = {"error": f"{type(error).__name__}: {text[0]:.300}", "all": str(error)}
            print(name, results[name].get("digest") or results[name]["error"], file=sys.stderr, flush=True)
    json.dump({"versions": versions(), "results": results}, sys.stdout)


def versions() -> dict[str, str]:
    """The versions of what differs between lanes."""
    from importlib import metadata  # noqa: PLC0415 - used once

    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in ("pyspark", "pyspark-client", "pyarrow", "pandas", "numpy", "protobuf"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
