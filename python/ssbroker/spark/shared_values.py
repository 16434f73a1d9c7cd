"""Shares a catalog or session keys with the workers of a Spark session, each value once; checks whether the session allows broadcasts."""

from __future__ import annotations

import hashlib
import pickle
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
    from pyspark.sql import DataFrame, SparkSession

_Value = TypeVar("_Value")

BROADCAST_THRESHOLD: Final = "spark.sql.autoBroadcastJoinThreshold"
"""The setting for the largest table, in bytes, that Spark broadcasts by itself; a negative value disables broadcasts."""
_BROADCASTS_MAX: Final = 4
# The fingerprint of session keys is computed with a secret, so that it reveals nothing about the session keys.
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
        # On the driver, a stream also unpickles the task, but there are no broadcast variables there. So a variable is
        # looked up only when its value is used.
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
    """Shares a catalog with the workers of a session, unless they already have it.

    On Spark Connect, a catalog is shared as an artifact of the session. Streaming queries cannot read artifacts, so with
    `in_stream`, the catalog is sent with every task.
    """
    return _share(spark, catalog, fingerprint=catalog.fingerprint, in_stream=in_stream)


def share_session_keys(
    spark: SparkSession, keys: Mapping[bytes, bytes], *, in_stream: bool = False
) -> SharedValue[dict[bytes, bytes]]:
    """Shares session keys, by 16-byte conversation id, with the workers of a session, unless they already have the keys."""
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
    """Returns whether a session is a Spark Connect session, which has no context."""
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


def broadcasts_allowed(frame: DataFrame) -> bool:
    """Returns whether the session allows broadcasts; a broadcast hint alone would ignore the setting."""
    return not str(frame.sparkSession.conf.get(BROADCAST_THRESHOLD)).strip().startswith("-")
