"""SQL Server Service Broker's routing and reassembly over Arrow batches."""

from __future__ import annotations

from importlib.metadata import version as _version

from ssbroker.catalog import Catalog
from ssbroker.exceptions import (
    DdlError,
    DdlWarning,
    DuplicateError,
    InputError,
    InvalidAddressError,
    InvalidGuidError,
    MalformedDataError,
    NullError,
    OptionError,
    OutputError,
    SchemaError,
    SsbrokerError,
    UnknownDatabaseError,
)
from ssbroker.explanation import Explanation
from ssbroker.fragments import fragment, md5
from ssbroker.reassembler import Reassembler, reassemble
from ssbroker.reassembly import Reassembly
from ssbroker.routing import Router

__version__ = _version("ssbroker")

__all__ = [
    "Catalog",
    "DdlError",
    "DdlWarning",
    "DuplicateError",
    "Explanation",
    "InputError",
    "InvalidAddressError",
    "InvalidGuidError",
    "MalformedDataError",
    "NullError",
    "OptionError",
    "OutputError",
    "Reassembler",
    "Reassembly",
    "Router",
    "SchemaError",
    "SsbrokerError",
    "UnknownDatabaseError",
    "__version__",
    "fragment",
    "md5",
    "reassemble",
]
