"""SQL Server Service Broker for Python: routing and reassembly of Arrow batches, and an embedded broker."""

from __future__ import annotations

import sys as _sys
from importlib import import_module as _import_module
from importlib.metadata import version as _version
from pathlib import Path as _Path
from typing import TYPE_CHECKING, Any

from ssbroker.catalog import Catalog
from ssbroker.catalog import instance_folder as _instance_folder
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

if TYPE_CHECKING:
    from ssbroker import diagnose, exceptions, schemas, spark, testing
    from ssbroker.broker.database import Database
    from ssbroker.broker.instance import Instance
    from ssbroker.broker.network.limits import EndpointLimits
    from ssbroker.broker.network.server import Server
    from ssbroker.broker.network.tls import Trust
    from ssbroker.broker.transaction import Message, Transaction
    from ssbroker.protocol.config import ProtocolSettings
    from ssbroker.protocol.wire.connection import LinkLimits

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
    "EndpointLimits",
    "Explanation",
    "InputError",
    "Instance",
    "InvalidAddressError",
    "InvalidGuidError",
    "LinkLimits",
    "LockTimeoutError",
    "MalformedDataError",
    "Message",
    "MissingDependencyError",
    "NullError",
    "OptionError",
    "OutputError",
    "ProtocolSettings",
    "Reassembler",
    "Reassembly",
    "Router",
    "SchemaError",
    "Server",
    "SsbrokerError",
    "StorageError",
    "Transaction",
    "Trust",
    "UnknownDatabaseError",
    "__version__",
    "diagnose",
    "exceptions",
    "fragment",
    "md5",
    "reassemble",
    "schemas",
    "spark",
    "testing",
]

# Imported on first use: most programs need only some of them.
_LAZY = {
    "Database": "ssbroker.broker.database",
    "EndpointLimits": "ssbroker.broker.network.limits",
    "Instance": "ssbroker.broker.instance",
    "LinkLimits": "ssbroker.protocol.wire.connection",
    "Message": "ssbroker.broker.transaction",
    "ProtocolSettings": "ssbroker.protocol.config",
    "Server": "ssbroker.broker.network.server",
    "Transaction": "ssbroker.broker.transaction",
    "Trust": "ssbroker.broker.network.tls",
}
_LAZY_MODULES = ("diagnose", "exceptions", "schemas", "spark", "testing")


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(_import_module(_LAZY[name]), name)
    if name in _LAZY_MODULES:
        return _import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


# Pickles of version 0.1 name modules that have been renamed since.
_sys.modules[f"{__name__}.routing"] = _sys.modules[Router.__module__]
_sys.modules[f"{__name__}.reassembler"] = _sys.modules[Reassembler.__module__]


def _open_instance(folder: _Path) -> Instance:
    from ssbroker.broker.instance import Instance  # noqa: PLC0415  # imported only to load instance folders

    return Instance.open(folder, background=False)


_instance_folder.register_opener(_open_instance)
