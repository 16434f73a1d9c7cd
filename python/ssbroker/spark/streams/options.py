"""The input and options of a stream, validated at creation."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from ssbroker import reassembly as keys
from ssbroker._arguments import boolean, integer_argument, utc_datetime
from ssbroker.catalog.catalog import Catalog
from ssbroker.exceptions import OptionError, SchemaError
from ssbroker.reassembly import SessionKeys
from ssbroker.router import PendingRequest, TieBreak
from ssbroker.spark.arguments import (
    MESSAGE_BYTES_MAX,
    check_frame,
    check_tie_break,
    default_pending_bytes,
    local_path,
)
from ssbroker.spark.compat import check_stream_support
from ssbroker.spark.dry_run import validate_routing
from ssbroker.spark.shared_values import share_catalog
from ssbroker.spark.streams.stream_catalog import CatalogPath, FixedCatalog, StreamCatalog, load_catalog
from ssbroker.spark.streams.task import RoutingSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
"""The state store that `transformWithState` requires."""

PENDING_BYTES_MAX: Final = 1 << 32
"""The maximum for `max_pending_bytes`; a worker keeps several copies of the pending bytes of a bucket."""
DELAYED_BYTES_MAX: Final = 1 << 29
BUCKETS_MAX: Final = 1 << 16
AGE_MAX: Final = timedelta(days=36525)
"""The maximum for `max_pending_age`; the times at which messages expire must be valid dates."""

DEFAULT_PATIENCE: Final = timedelta(minutes=5)
"""How long, by default, the last readable catalog stays in use when its path becomes unreadable."""
_KEY_BYTES_MAX: Final = 64
_MICROSECOND: Final = timedelta(microseconds=1)


_BATCH_FUNCTIONS: Final = {
    "ssbroker.spark.stream": "ssbroker.spark.pipeline or reassemble",
    "ssbroker.spark.reassemble_stream": "ssbroker.spark.reassemble",
    "ssbroker.spark.route_stream": "ssbroker.spark.route",
}


def check_stream(frame: DataFrame, *, name: str, observe: str | None) -> SparkSession:
    """Checks the input and the state store, and returns the session; raises `SchemaError` or `OptionError`."""
    check_stream_support(name, instead=_BATCH_FUNCTIONS[name])
    check_frame(frame, name=name)
    if not frame.isStreaming:
        raise SchemaError(
            f"{name} requires a streaming DataFrame (spark.readStream); for a batch DataFrame use {_BATCH_FUNCTIONS[name]}",
            expected="a streaming DataFrame",
            actual="a batch DataFrame",
        )
    metrics_name: object = observe
    if metrics_name is not None and not (isinstance(metrics_name, str) and metrics_name):
        raise OptionError(f"observe: expected a name or None, got {observe!r:.80}")
    spark = frame.sparkSession
    provider = spark.conf.get(PROVIDER)
    if provider != ROCKSDB:
        raise OptionError(f"{name} requires the RocksDB state store: set {PROVIDER} to {ROCKSDB}; it is {provider}")
    return spark


@dataclass(frozen=True, kw_only=True)
class BucketCount:
    """How conversations are distributed over buckets; raises `OptionError` for an invalid value.

    Attributes:
        count: The number of buckets.
        key: The key with which ids are hashed.
    """

    count: int
    key: bytes | None = field(repr=False)

    def __post_init__(self) -> None:
        integer_argument(self.count, name="buckets", minimum=1, maximum=BUCKETS_MAX)
        given: object = self.key
        if given is not None and not (isinstance(given, bytes) and 0 < len(given) <= _KEY_BYTES_MAX):
            got = f"{len(given)} bytes" if isinstance(given, bytes) else type(given).__name__
            raise OptionError(f"bucket_key: expected 1 to {_KEY_BYTES_MAX} bytes or None, got {got}")

    @property
    def fixed(self) -> dict[str, str | int | bool | None]:
        """The options that must not change during the lifetime of a checkpoint, with a digest in place of the key."""
        digest = hashlib.blake2b(self.key or b"", digest_size=8, person=b"bucket key").hexdigest()
        return {"buckets": self.count, "bucket_key": digest}


@dataclass(frozen=True, kw_only=True)
class StreamLimits:
    """How fragments are reassembled; see `stream` for the attributes. Raises `OptionError` for an invalid value."""

    in_order: bool
    session_keys: SessionKeys | None = field(repr=False)
    acknowledgements: bool
    max_message_bytes: int
    max_fragments_per_message: int | None
    max_pending_bytes: int | None
    max_pending_age: timedelta | None

    def __post_init__(self) -> None:
        boolean(self.in_order, name="in_order")
        boolean(self.acknowledgements, name="acknowledgements")
        integer_argument(self.max_message_bytes, name="max_message_bytes", minimum=1, maximum=MESSAGE_BYTES_MAX)
        if self.max_pending_bytes is not None:
            integer_argument(self.max_pending_bytes, name="max_pending_bytes", minimum=0, maximum=PENDING_BYTES_MAX)
        if self.max_fragments_per_message is not None:
            integer_argument(
                self.max_fragments_per_message, name="max_fragments_per_message", minimum=1, maximum=2**31 - 1
            )
        if self.max_pending_age is not None:
            microseconds(self.max_pending_age, name="max_pending_age", minimum=timedelta(seconds=1), maximum=AGE_MAX)

    @property
    def pending_bytes_limit(self) -> int:
        """The limit for pending bytes of a bucket."""
        if self.max_pending_bytes is None:
            return default_pending_bytes(self.max_message_bytes)
        return self.max_pending_bytes

    @property
    def fixed(self) -> dict[str, str | int | bool | None]:
        """The options that must not change during the lifetime of a checkpoint, because the state of a reassembler contains its limits."""
        return {
            "in_order": self.in_order,
            "session_keys": _key_source(self.session_keys),
            "max_message_bytes": self.max_message_bytes,
            "max_fragments_per_message": self.max_fragments_per_message,
            "max_pending_bytes": self.pending_bytes_limit,
        }


def _key_source(session_keys: SessionKeys | None) -> str:
    match keys.normalize_session_keys(session_keys):
        case None:
            return "none"
        case str(column):
            return f"the column {column}"
        case _:
            return "given"


def microseconds(value: object, *, name: str, minimum: timedelta, maximum: timedelta = timedelta.max) -> int:
    """Returns the microseconds of a `timedelta` within the limits; `name` is the option, for the error message.

    Examples:
        >>> microseconds(timedelta(seconds=2), name="max_pending_age", minimum=timedelta(seconds=1), maximum=AGE_MAX)
        2000000
    """
    if not isinstance(value, timedelta) or not minimum <= value <= maximum:
        and_maximum = "" if maximum == timedelta.max else f" and at most {maximum.days} days"
        raise OptionError(
            f"{name}: expected a datetime.timedelta of at least {minimum}{and_maximum}, got {value!r:.80}"
        )
    return value // _MICROSECOND


def parse_catalog(value: object) -> Catalog | str:
    """Returns a catalog, or the absolute path of a catalog; raises `InputError` for a URI and `SchemaError` for anything else.

    Examples:
        >>> parse_catalog(7)
        Traceback (most recent call last):
        ssbroker.exceptions.SchemaError: catalog: expected an ssbroker.Catalog or a path, got int
    """
    if isinstance(value, Catalog):
        return value
    if isinstance(value, str | os.PathLike) and isinstance(os.fspath(value), str):
        return str(local_path(value, name="catalog"))
    raise SchemaError(f"catalog: expected an ssbroker.Catalog or a path, got {type(value).__name__}")


_PATIENCE_OPTION: Final = "catalog_patience"


@dataclass(frozen=True, kw_only=True)
class StreamRouting:
    """How messages are routed; see `stream` for the attributes. Raises `OptionError` for an invalid value."""

    catalog: Catalog | str | os.PathLike[str]
    tie_break: TieBreak
    pending_request: PendingRequest
    max_delayed_bytes: int
    catalog_patience: timedelta

    def __post_init__(self) -> None:
        parse_catalog(self.catalog)
        check_tie_break(self.tie_break)
        integer_argument(self.max_delayed_bytes, name="max_delayed_bytes", minimum=0, maximum=DELAYED_BYTES_MAX)
        microseconds(self.catalog_patience, name=_PATIENCE_OPTION, minimum=timedelta(0))

    def settings(
        self,
        spark: SparkSession,
        types: Mapping[str, pa.DataType],
        names: Mapping[str, str],
        *,
        direction: tuple[str, ...] | None,
    ) -> RoutingSettings:
        """Checks the columns and the catalog, and returns the settings that are sent to workers.

        `types` contains the type of each conversation column, and `names` the name of its column in messages. `direction`
        is as in `RoutingSettings`.
        """
        given = parse_catalog(self.catalog)
        catalog = given if isinstance(given, Catalog) else load_catalog(Path(given))
        labels = validate_routing(
            catalog, types, now=utc_datetime(None), tie_break=self.tie_break, pending_request=self.pending_request
        )
        stream_catalog: StreamCatalog = (
            FixedCatalog(share_catalog(spark, given, in_stream=True))
            if isinstance(given, Catalog)
            else self._catalog_path(given)
        )
        return RoutingSettings(
            catalog=stream_catalog,
            tie_break=self.tie_break,
            pending_request=self.pending_request,
            labels=labels,
            names=names,
            direction=direction,
            max_delayed_bytes=self.max_delayed_bytes,
        )

    def _catalog_path(self, path: str) -> CatalogPath:
        return CatalogPath(path, microseconds(self.catalog_patience, name=_PATIENCE_OPTION, minimum=timedelta(0)))
