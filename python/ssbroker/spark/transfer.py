"""Which columns of a conversation are transferred from the JVM to Python, and how the worker decodes them.

Transferring a column costs more than comparing it in the JVM. So the database, `is_initiator` and, if no tie is broken by it, the
conversation id are encoded as one small number, the code. A value without a code is sent as text, for the error message.
"""

from __future__ import annotations

import functools
import hashlib
import os
import pickle
import re
import secrets
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

import pyarrow as pa

from ssbroker.catalog.catalog import Catalog
from ssbroker.exceptions import InputError
from ssbroker.router import TieBreak
from ssbroker.spark import columns
from ssbroker.spark.columns import CODE_COLUMNS, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


_Column: TypeAlias = Any  # an Arrow array; pyarrow's stubs are too narrow

_ID_BYTES: Final = 16
_DATABASE_CODES: Final = 16
_OTHER_DATABASE: Final = _DATABASE_CODES - 1
_INITIATOR_UNIT: Final = _DATABASE_CODES
_INVALID_ID: Final = 64
_CODES: Final = 128
_DATABASE: Final = "database"
_IS_INITIATOR: Final = "is_initiator"


@dataclass(frozen=True, kw_only=True)
class TransferredColumns:
    """Which columns are transferred as they are, and which are encoded.

    Attributes:
        direct: The columns that are transferred unchanged.
        encoded: The columns that the code encodes. If there are any, the code and the text follow the direct columns.
        databases: The databases that have a code.
    """

    direct: tuple[str, ...]
    encoded: tuple[str, ...]
    databases: tuple[str, ...]

    @classmethod
    def of(
        cls, types: Mapping[str, pa.DataType], given: DataFrame, catalog: Catalog, tie_break: TieBreak
    ) -> TransferredColumns:
        """Chooses how to transfer the columns that routing reads."""
        from pyspark.sql.types import StringType  # noqa: PLC0415 - pyspark is an extra

        databases = tuple(str(name) for name in catalog.databases["name"].to_pylist())
        encoded = []
        # Under a collation, different names could compare equal; Service Broker compares names byte by byte.
        by_bytes = types.get(_DATABASE) == pa.string() and given.schema[_DATABASE].dataType == StringType()
        if by_bytes and len(databases) < _OTHER_DATABASE:
            encoded.append(_DATABASE)
        encoded += [name for name in columns.ID_COLUMNS if tie_break == "first" and types.get(name) == pa.binary()]
        if encoded and types.get(_IS_INITIATOR) == pa.bool_():
            encoded.append(_IS_INITIATOR)
        return cls(
            direct=tuple(name for name in types if name not in encoded), encoded=tuple(encoded), databases=databases
        )

    def with_codes(self, given: DataFrame) -> DataFrame:
        """Returns the rows, with the columns `CODE_COLUMNS` if any column is encoded.

        The nondeterministic condition keeps Spark from moving the expressions into the function call, where each value would be read again.
        It also makes Spark pass rows rather than column batches: over a columnar scan, Spark 4.3 would send the rows of an Arrow UDF
        through a queue and convert them back into columns, which is a third slower.
        """
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        always = sf.spark_partition_id() >= 0
        if not self.encoded:
            return given.where(always)
        added = zip(CODE_COLUMNS, self._code_and_text(), strict=True)
        return given.select("*", *(sf.when(always, column).alias(name) for name, column in added))

    def transferred_names(self) -> list[str]:
        """Returns the names of the columns of `with_codes` that are transferred."""
        return [*self.direct, *(quoted(name) for name in CODE_COLUMNS if self.encoded)]

    def _code_and_text(self) -> tuple[Column, Column]:
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        code, text = sf.lit(0), sf.lit(None).cast("string")
        if _DATABASE in self.encoded:
            database = sf.col(_DATABASE)
            database_code = sf.when(database.isNull(), 0)
            for number, name in enumerate(self.databases, start=1):
                database_code = database_code.when(database == name, number)
            database_code = database_code.otherwise(_OTHER_DATABASE)
            code, text = database_code, sf.when(database_code == _OTHER_DATABASE, database)
        if _IS_INITIATOR in self.encoded:
            code += sf.coalesce(sf.col(_IS_INITIATOR).cast("int") + 1, sf.lit(0)) * _INITIATOR_UNIT
        for name in self._encoded_ids():
            is_wrong = sf.length(name) != _ID_BYTES
            code += sf.when(is_wrong, _INVALID_ID).otherwise(0)
            text = sf.when(is_wrong, sf.hex(name)).otherwise(text)
        return code.cast("tinyint"), text

    def decode(self, arrays: Sequence[_Column]) -> pa.RecordBatch:
        """Returns the conversations of a batch, in Python; an id that is not needed is null."""
        decoded: dict[str, _Column] = dict(zip(self.direct, arrays, strict=False))
        if self.encoded:
            code, text = arrays[len(self.direct) :]
            number: _Column = code.cast(pa.int32())
            if _DATABASE in self.encoded:
                indexes = _values_by_code(
                    (None, *range(len(self.databases))), pa.int32(), unit=1, numbers=_DATABASE_CODES
                )
                names = pa.array(self.databases, pa.string())
                decoded[_DATABASE] = pa.DictionaryArray.from_arrays(indexes.take(number), names)
            if _IS_INITIATOR in self.encoded:
                initiators = _values_by_code((None, False, True), pa.bool_(), unit=_INITIATOR_UNIT, numbers=4)
                decoded[_IS_INITIATOR] = initiators.take(number)
            decoded |= dict.fromkeys(self._encoded_ids(), pa.nulls(len(text), pa.binary()))
            if text.null_count < len(text):
                decoded |= self._with_invalid_values(decoded, number, text)
        return pa.RecordBatch.from_arrays(list(decoded.values()), names=list(decoded))

    def _with_invalid_values(
        self, decoded: Mapping[str, _Column], number: _Column, text: _Column
    ) -> dict[str, _Column]:
        """Returns the encoded columns with the values that had no code."""
        # Spark strings may hold invalid UTF-8; the replacement characters match no database.
        raw = text.cast(pa.large_binary()).to_pylist()
        texts = [None if value is None else value.decode(errors="replace") for value in raw]
        of_id = [code >= _INVALID_ID for code in number.to_pylist()]
        ids = [bytes.fromhex(value or "") if is_id else None for value, is_id in zip(texts, of_id, strict=True)]
        replaced: dict[str, _Column] = dict.fromkeys(self._encoded_ids(), pa.array(ids, pa.binary()))
        if _DATABASE in self.encoded:
            known = decoded[_DATABASE].to_pylist()
            names = [
                name if value is None or is_id else value
                for name, value, is_id in zip(known, texts, of_id, strict=True)
            ]
            replaced[_DATABASE] = pa.array(names, pa.string())
        return replaced

    def _encoded_ids(self) -> list[str]:
        return [name for name in self.encoded if name in columns.ID_COLUMNS]


@functools.cache
def _values_by_code(values: tuple[Any, ...], kind: pa.DataType, *, unit: int, numbers: int) -> _Column:
    """Returns, for each code, the value that one of its digits stands for."""
    by_part = [*values, *[None] * (numbers - len(values))]
    return pa.array([by_part[code // unit % numbers] for code in range(_CODES)], kind)


_Value = TypeVar("_Value")

_BROADCASTS_MAX: Final = 4
# The fingerprint of session keys is keyed, so that it reveals nothing about them.
_DIGEST_KEY: Final = secrets.token_bytes(32)


@dataclass(frozen=True)
class SharedValue(Generic[_Value]):
    """A reference to a value that workers can resolve; references with equal fingerprints are equal.

    Attributes:
        fingerprint: Identifies the value.
    """

    fingerprint: str

    def value(self) -> _Value:
        """Returns the value, in a worker."""
        raise NotImplementedError


@dataclass(frozen=True)
class _Broadcast(SharedValue[_Value]):
    variable: Any = field(compare=False)

    def value(self) -> _Value:
        value: _Value = self.variable.value
        return value

    def __reduce__(self) -> tuple[Callable[..., SharedValue[_Value]], tuple[Any, ...]]:
        # The driver of a stream unpickles the task, and has no broadcast variables: they are resolved only when the value is used.
        return _InWorker, (self.fingerprint, *self.variable.__reduce__())


@dataclass(frozen=True)
class _InWorker(SharedValue[_Value]):
    find: Callable[..., Any] = field(compare=False)
    arguments: tuple[Any, ...] = field(compare=False)

    def value(self) -> _Value:
        value: _Value = self.find(*self.arguments).value
        return value


@dataclass(frozen=True)
class _InlineValue(SharedValue[_Value]):
    pickled: bytes = field(compare=False, repr=False)

    def value(self) -> _Value:
        # The pickle comes from the same client as the function that reads it, which can run any code anyway.
        value: _Value = pickle.loads(self.pickled)  # noqa: S301
        return value


@dataclass(frozen=True)
class _Artifact(SharedValue[_Value]):
    file: str = field(compare=False)

    def value(self) -> _Value:
        from pyspark import SparkFiles  # noqa: PLC0415 - pyspark is an extra

        try:
            pickled = Path(SparkFiles.get(self.file)).read_bytes()
        except FileNotFoundError as error:
            raise InputError(
                "route_udf: a streaming query on Spark Connect cannot read artifacts of its session, which hold the catalog; "
                "use ssbroker.spark.route_stream or route"
            ) from error
        # The pickle comes from the same client as the function that reads it, which can run any code anyway.
        value: _Value = pickle.loads(pickled)  # noqa: S301
        return value


_broadcasts: Final[dict[tuple[str, str], _Broadcast[Any]]] = {}
_artifacts: Final[dict[tuple[str, str], _Artifact[Any]]] = {}


def share_catalog(spark: SparkSession, catalog: Catalog, *, in_stream: bool = False) -> SharedValue[Catalog]:
    """Shares a catalog with the workers of a session, unless they have it already.

    A streaming query on Spark Connect sees no artifacts: with `in_stream`, the catalog is sent with every task there.
    """
    return _share(spark, catalog, fingerprint=catalog.fingerprint, in_stream=in_stream)


def share_session_keys(
    spark: SparkSession, keys: Mapping[bytes, bytes], *, in_stream: bool = False
) -> SharedValue[dict[bytes, bytes]]:
    """Shares session keys, by 16-byte conversation id, with the workers of a session, unless they have them already."""
    digest = hashlib.blake2b(key=_DIGEST_KEY)
    for conversation, key in sorted(keys.items()):
        digest.update(conversation + bytes([len(key)]) + key)
    return _share(spark, dict(keys), fingerprint=digest.hexdigest(), in_stream=in_stream)


def _share(spark: SparkSession, value: _Value, *, fingerprint: str, in_stream: bool) -> SharedValue[_Value]:
    if is_connect(spark):
        if in_stream:
            return _InlineValue(fingerprint, pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL))
        return _share_artifact(spark, value, fingerprint=fingerprint)
    context = spark.sparkContext
    key = (str(context.applicationId), fingerprint)
    if key not in _broadcasts:
        # Each DataFrame keeps its own broadcasts alive, so dropping an old one here is safe.
        while len(_broadcasts) >= _BROADCASTS_MAX:
            del _broadcasts[next(iter(_broadcasts))]
        _broadcasts[key] = _Broadcast(fingerprint, context.broadcast(value))
    return _broadcasts[key]


def is_connect(spark: SparkSession) -> bool:
    """Whether a session is one of Spark Connect, which has no context."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def _share_artifact(spark: SparkSession, value: _Value, *, fingerprint: str) -> SharedValue[_Value]:
    session: Any = spark
    key = (str(session.session_id), fingerprint)
    if key not in _artifacts:
        name = f"ssbroker-{uuid.uuid4().hex}"
        with tempfile.TemporaryDirectory(prefix="ssbroker-") as folder:
            path = Path(folder, name)
            path.write_bytes(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL))
            spark.addArtifact(str(path), file=True)
        _artifacts[key] = _Artifact(fingerprint, name)
    return _artifacts[key]


MESSAGE_BYTES_MAX: Final = 1 << 30
"""The maximum message size: larger values exhaust Spark's memory and its limit of 2 GiB for a value."""

_PENDING_BYTES_MIN: Final = 1 << 30
_PENDING_MESSAGES: Final = 4


def default_pending_bytes(max_message_bytes: int) -> int:
    """Returns the default limit for pending bytes: 1 GiB, or four of the largest messages if that is more.

    Examples:
        >>> default_pending_bytes(1 << 20) >> 30, default_pending_bytes(1 << 30) >> 30
        (1, 4)
    """
    return max(_PENDING_BYTES_MIN, _PENDING_MESSAGES * max_message_bytes)


_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def local_path(path: str | os.PathLike[str], *, name: str) -> Path:
    """Returns an absolute path, since workers run in another directory than the driver; raises `InputError` for a URI.

    Symbolic links are not resolved: a link may be how the target is replaced.

    Examples:
        >>> local_path("/data/./day.parquet", name="source").as_posix()
        '/data/day.parquet'
        >>> local_path("s3://bucket/day.parquet", name="source")
        Traceback (most recent call last):
        ssbroker.exceptions.InputError: source: 's3://bucket/day.parquet' is a URI; expected a path on a file system that driver and workers share
    """
    text = os.fspath(path)
    if _URI.match(text):
        raise InputError(
            f"{name}: {text!r:.200} is a URI; expected a path on a file system that driver and workers share",
            value=text,
            expected="a path",
        )
    return Path(os.path.abspath(text))  # noqa: PTH100 - resolve() would follow links
