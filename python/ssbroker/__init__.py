"""SQL Server Service Broker for Python: routing and reassembly over Arrow batches, and a broker in an application."""

from __future__ import annotations

from importlib.metadata import version as _version

from ssbroker.broker.database import Database
from ssbroker.broker.instance import Instance
from ssbroker.broker.network.tls import Trust
from ssbroker.catalog.catalog import Catalog
from ssbroker.exceptions import (
    BrokerError,
    BrokerWarning,
    DdlError,
    DdlWarning,
    DuplicateError,
    EndpointError,
    InputError,
    InvalidAddressError,
    InvalidGuidError,
    LockTimeoutError,
    MalformedDataError,
    MissingDependencyError,
    NullError,
    OptionError,
    OutputError,
    SchemaError,
    SsbrokerError,
    StorageError,
    UnknownDatabaseError,
)
from ssbroker.explain import Explanation
from ssbroker.reassembly import Reassembler, Reassembly, fragment, md5, reassemble
from ssbroker.router import Router

__version__ = _version("ssbroker")

__all__ = [
    "BrokerError",
    "BrokerWarning",
    "Catalog",
    "Database",
    "DdlError",
    "DdlWarning",
    "DuplicateError",
    "EndpointError",
    "Explanation",
    "InputError",
    "Instance",
    "InvalidAddressError",
    "InvalidGuidError",
    "LockTimeoutError",
    "MalformedDataError",
    "MissingDependencyError",
    "NullError",
    "OptionError",
    "OutputError",
    "Reassembler",
    "Reassembly",
    "Router",
    "SchemaError",
    "SsbrokerError",
    "StorageError",
    "Trust",
    "UnknownDatabaseError",
    "__version__",
    "fragment",
    "md5",
    "reassemble",
]
