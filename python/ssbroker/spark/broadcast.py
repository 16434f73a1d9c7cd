"""Ships catalogs and session keys to workers once per session; message size limits and paths on workers."""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import secrets
import tempfile
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from ssbroker.catalog.catalog import Catalog
from ssbroker.exceptions import InputError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_Value = TypeVar("_Value")

_BROADCASTS_MAX: Final = 4
# Keys are told apart by a digest that says nothing about them to who reads it.
_SECRET: Final = secrets.token_bytes(32)


@dataclass(frozen=True)
class SharedValue(Generic[_Value]):
    """Where a worker finds a value; two are equal when the values say the same.

    Attributes:
        fingerprint: What tells the value from others.
    """

    fingerprint: str

    def value(self) -> _Value:
        """The value, in a worker."""
        raise NotImplementedError


@dataclass(frozen=True)
class _Broadcast(SharedValue[_Value]):
    variable: Any = field(compare=False)

    def value(self) -> _Value:
        value: _Value = self.variable.value
        return value

    def __reduce__(self) -> tuple[Callable[..., SharedValue[_Value]], tuple[Any, ...]]:
        # The driver of a stream unpickles what is meant for its workers, and has no broadcasts: they are looked up when they are needed.
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
        # It comes from the same client as the function that it travels with, which could do anything as well.
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
                "a streaming query on Spark Connect sees nothing of what was sent to its session, and so not the catalog of route_udf; "
                "expected ssbroker.spark.route_stream or route"
            ) from error
        # It comes from the same client as the function that reads it, which could do anything as well.
        value: _Value = pickle.loads(pickled)  # noqa: S301
        return value


_broadcasts: Final[dict[tuple[str, str], _Broadcast[Any]]] = {}
_artifacts: Final[dict[tuple[str, str], _Artifact[Any]]] = {}


def ship(spark: SparkSession, catalog: Catalog, *, in_stream: bool = False) -> SharedValue[Catalog]:
    """Hands a catalog to the workers of a session, unless they have it.

    Args:
        spark: The session.
        catalog: The catalog.
        in_stream: Whether it is for a streaming query, which on Spark Connect sees no artifacts: there it travels with every task.

    Returns:
        Where the workers find it.
    """
    return _shipped(spark, catalog, fingerprint=catalog.fingerprint, in_stream=in_stream)


def ship_keys(
    spark: SparkSession, keys: Mapping[bytes, bytes], *, in_stream: bool = False
) -> SharedValue[dict[bytes, bytes]]:
    """Hands session keys to the workers of a session, unless they have them.

    Args:
        spark: The session.
        keys: The keys by the 16 bytes of the conversation's id.
        in_stream: As of `ship`.

    Returns:
        Where the workers find them.
    """
    digest = hashlib.blake2b(key=_SECRET)
    for conversation, key in sorted(keys.items()):
        digest.update(conversation + bytes([len(key)]) + key)
    return _shipped(spark, dict(keys), fingerprint=digest.hexdigest(), in_stream=in_stream)


def _shipped(spark: SparkSession, value: _Value, *, fingerprint: str, in_stream: bool) -> SharedValue[_Value]:
    if not hasattr(spark, "sparkContext"):
        if in_stream:
            return _InlineValue(fingerprint, pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL))
        return _as_artifact(spark, value, fingerprint=fingerprint)
    context = spark.sparkContext
    key = (str(context.applicationId), fingerprint)
    if key not in _broadcasts:
        # A broadcast is freed when the last DataFrame that needs it is; so to forget an old one here loses nothing.
        while len(_broadcasts) >= _BROADCASTS_MAX:
            del _broadcasts[next(iter(_broadcasts))]
        _broadcasts[key] = _Broadcast(fingerprint, context.broadcast(value))
    return _broadcasts[key]


def _as_artifact(spark: SparkSession, value: _Value, *, fingerprint: str) -> SharedValue[_Value]:
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
"""What a message may have at most: beyond it, Spark's memory and its cells of 2 GiB give out."""

_LEAST: Final = 1 << 30
_MESSAGES: Final = 4


def room_for(max_message_bytes: int) -> int:
    """What may be pending where nothing else is said: room for any message, and then some.

    Args:
        max_message_bytes: The largest message.

    Returns:
        The bytes.

    Examples:
        >>> room_for(1 << 20) >> 30, room_for(1 << 30) >> 30
        (1, 4)
    """
    return max(_LEAST, _MESSAGES * max_message_bytes)


_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def local_path(given: str | os.PathLike[str], *, name: str) -> Path:
    """A path, absolute: the folder in which the driver works is not that of its workers.

    Args:
        given: What was given.
        name: What it is, for messages.

    Returns:
        The path. A link stays one: it may be how what it stands for is replaced.

    Raises:
        InputError: It is a URI.

    Examples:
        >>> local_path("/data/./day.parquet", name="source").as_posix()
        '/data/day.parquet'
        >>> local_path("s3://bucket/day.parquet", name="source")
        Traceback (most recent call last):
        ssbroker.exceptions.InputError: source: 's3://bucket/day.parquet' is a URI, and files are read and written here without Hadoop; expected a path that driver and workers have in common
    """
    text = os.fspath(given)
    if _URI.match(text):
        raise InputError(
            f"{name}: {text!r:.200} is a URI, and files are read and written here without Hadoop; expected a path that "
            "driver and workers have in common",
            value=text,
            expected="a path",
        )
    return Path(os.path.abspath(text))  # noqa: PTH100 - see above
