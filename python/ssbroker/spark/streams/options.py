"""The options of a stream, checked when they are given."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from ssbroker import reassembly as keys
from ssbroker._arguments import boolean, whole_number
from ssbroker.catalog.catalog import Catalog
from ssbroker.exceptions import OptionError, SchemaError
from ssbroker.reassembly import SessionKeys
from ssbroker.spark.broadcast import MESSAGE_BYTES_MAX, default_pending_bytes

PENDING_BYTES_MAX: Final = 1 << 32
"""What may be pending in a bucket at most: a worker has several copies of it."""
DELAYED_BYTES_MAX: Final = 1 << 29
BUCKETS_MAX: Final = 1 << 16
AGE_MAX: Final = timedelta(days=36525)
"""After how long a message is given up at most: the moments at which that would be have to be dates."""

_KEY_BYTES_MAX: Final = 64
_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, kw_only=True)
class BucketCount:
    """How conversations are spread.

    Attributes:
        count: How many buckets there are.
        key: By what they are spread, as well as by their ids.

    Raises:
        OptionError: One is not what it can be.
    """

    count: int
    key: bytes | None = field(repr=False)

    def __post_init__(self) -> None:
        whole_number(self.count, name="buckets", minimum=1, maximum=BUCKETS_MAX)
        given: object = self.key
        if given is not None and not (isinstance(given, bytes) and 0 < len(given) <= _KEY_BYTES_MAX):
            raise OptionError(f"bucket_key: expected 1 to {_KEY_BYTES_MAX} bytes or None; got {type(given).__name__}")

    @property
    def fixed(self) -> dict[str, str | int | bool | None]:
        """What must not change, without the key itself."""
        digest = hashlib.blake2b(self.key or b"", digest_size=8, person=b"bucket key").hexdigest()
        return {"buckets": self.count, "bucket_key": digest}


@dataclass(frozen=True, kw_only=True)
class StreamLimits:
    """How fragments are put together.

    Attributes:
        in_order: As of `stream`, like all that follow.
        session_keys: The same.
        acknowledgements: The same.
        max_message_bytes: The same.
        max_fragments_per_message: The same.
        max_pending_bytes: The same.
        max_pending_age: The same.

    Raises:
        OptionError: One is not what it can be.
    """

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
        whole_number(self.max_message_bytes, name="max_message_bytes", minimum=1, maximum=MESSAGE_BYTES_MAX)
        if self.max_pending_bytes is not None:
            whole_number(self.max_pending_bytes, name="max_pending_bytes", minimum=0, maximum=PENDING_BYTES_MAX)
        if self.max_fragments_per_message is not None:
            whole_number(self.max_fragments_per_message, name="max_fragments_per_message", minimum=1, maximum=2**31 - 1)
        if self.max_pending_age is not None:
            microseconds(self.max_pending_age, name="max_pending_age", least=timedelta(seconds=1), most=AGE_MAX)

    @property
    def room(self) -> int:
        """What may be pending in a bucket."""
        if self.max_pending_bytes is None:
            return default_pending_bytes(self.max_message_bytes)
        return self.max_pending_bytes

    @property
    def fixed(self) -> dict[str, str | int | bool | None]:
        """What must not change: a checkpoint of a reassembler goes on with the limits that it began with."""
        return {
            "in_order": self.in_order,
            "session_keys": _origin(self.session_keys),
            "max_message_bytes": self.max_message_bytes,
            "max_fragments_per_message": self.max_fragments_per_message,
            "max_pending_bytes": self.room,
        }


def _origin(session_keys: SessionKeys | None) -> str:
    match keys.normalize_session_keys(session_keys):
        case None:
            return "none"
        case str(column):
            return f"the column {column}"
        case _:
            return "given"


def microseconds(value: object, *, name: str, least: timedelta, most: timedelta = timedelta.max) -> int:
    """A span of time.

    Args:
        value: What was given.
        name: The option, for messages.
        least: The shortest that is allowed.
        most: The longest.

    Returns:
        Its microseconds.

    Raises:
        OptionError: It is no span of time, or not within the limits.

    Examples:
        >>> microseconds(timedelta(seconds=2), name="max_pending_age", least=timedelta(seconds=1), most=AGE_MAX)
        2000000
    """
    if not isinstance(value, timedelta) or not least <= value <= most:
        and_most = "" if most == timedelta.max else f" and at most {most.days} days"
        raise OptionError(f"{name}: expected a datetime.timedelta of at least {least}{and_most}; got {value!r:.80}")
    return value // _MICROSECOND


def catalog_given(value: object) -> Catalog | str:
    """A catalog, or the path of one.

    Args:
        value: What was given.

    Returns:
        The catalog, or the path as text, absolute.

    Raises:
        SchemaError: It is neither.

    Examples:
        >>> catalog_given(7)
        Traceback (most recent call last):
        ssbroker.exceptions.SchemaError: catalog: expected an ssbroker.Catalog or a path, got int
    """
    if isinstance(value, Catalog):
        return value
    if isinstance(value, str | os.PathLike):
        path: str | bytes = os.fspath(value)
        if isinstance(path, str):
            return os.path.abspath(path)  # noqa: PTH100 - a link stays one: it may be how the catalog is replaced
    raise SchemaError(f"catalog: expected an ssbroker.Catalog or a path, got {type(value).__name__}")
