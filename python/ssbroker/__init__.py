"""SQL Server Service Broker for Python: routing and reassembly of Arrow batches, and an embedded broker."""

from __future__ import annotations

import sys as _sys
from importlib import import_module as _import_module
from importlib.util import find_spec as _find_spec
from types import ModuleType as _ModuleType
from typing import TYPE_CHECKING, Any

from ssbroker.catalog import instance_folder as _instance_folder

if TYPE_CHECKING:
    from pathlib import Path

    from ssbroker import diagnose, exceptions, schemas, testing
    from ssbroker import spark as spark  # exported
    from ssbroker.broker.database import Database
    from ssbroker.broker.instance import Instance
    from ssbroker.broker.job import Job
    from ssbroker.broker.metrics import metrics
    from ssbroker.broker.network.instance_server import Server
    from ssbroker.broker.network.limits import EndpointLimits
    from ssbroker.broker.network.tls import Trust
    from ssbroker.broker.opentelemetry_spans import traces
    from ssbroker.broker.read_transaction import ReadTransaction
    from ssbroker.broker.received_message import Message
    from ssbroker.broker.scripts.object_comparison import ObjectChange
    from ssbroker.broker.transaction import Transaction
    from ssbroker.broker.work_queue import WorkQueue
    from ssbroker.catalog.catalog import Catalog
    from ssbroker.exceptions import (
        BrokerError,
        BrokerWarning,
        DdlError,
        DdlWarning,
        DuplicateError,
        EndpointError,
        FileReplacedError,
        InputError,
        InvalidAddressError,
        InvalidGuidError,
        LeaseLostError,
        LockTimeoutError,
        MalformedDataError,
        MissingDependencyError,
        NullError,
        OptionError,
        OutputError,
        PeerError,
        ProtocolError,
        SchemaError,
        SsbrokerError,
        StorageError,
        UnknownDatabaseError,
    )
    from ssbroker.explain import Explanation
    from ssbroker.protocol.settings import ProtocolSettings
    from ssbroker.protocol.wire.link import LinkLimits
    from ssbroker.reassembly import Reassembler, Reassembly, fragment, md5, reassemble
    from ssbroker.router import Routed, Router, tie_break_hash
    from ssbroker.summary import RoutingSummary, summarize

    __version__: str

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
    "FileReplacedError",
    "InputError",
    "Instance",
    "InvalidAddressError",
    "InvalidGuidError",
    "Job",
    "LeaseLostError",
    "LinkLimits",
    "LockTimeoutError",
    "MalformedDataError",
    "Message",
    "MissingDependencyError",
    "NullError",
    "ObjectChange",
    "OptionError",
    "OutputError",
    "PeerError",
    "ProtocolError",
    "ProtocolSettings",
    "ReadTransaction",
    "Reassembler",
    "Reassembly",
    "Routed",
    "Router",
    "RoutingSummary",
    "SchemaError",
    "Server",
    "SsbrokerError",
    "StorageError",
    "Transaction",
    "Trust",
    "UnknownDatabaseError",
    "WorkQueue",
    "__version__",
    "diagnose",
    "exceptions",
    "fragment",
    "md5",
    "metrics",
    "reassemble",
    "schemas",
    "summarize",
    "testing",
    "tie_break_hash",
    "traces",
]

# `spark` is not in `__all__`, because `from ssbroker import *` must work without PySpark.
# Public names are imported on first use: most programs need only some of them, and a Spark worker needs few.
_MODULES = ("diagnose", "exceptions", "schemas", "spark", "testing")
_HOMES = {
    "Catalog": "catalog.catalog",
    "Database": "broker.database",
    "EndpointLimits": "broker.network.limits",
    "Explanation": "explain",
    "Instance": "broker.instance",
    "Job": "broker.job",
    "LinkLimits": "protocol.wire.link",
    "Message": "broker.received_message",
    "metrics": "broker.metrics",
    "traces": "broker.opentelemetry_spans",
    "ProtocolSettings": "protocol.settings",
    "ObjectChange": "broker.scripts.object_comparison",
    "ReadTransaction": "broker.read_transaction",
    "WorkQueue": "broker.work_queue",
    **dict.fromkeys(("Routed", "Router", "tie_break_hash"), "router"),
    **dict.fromkeys(("RoutingSummary", "summarize"), "summary"),
    "Server": "broker.network.instance_server",
    "Transaction": "broker.transaction",
    "Trust": "broker.network.tls",
    **dict.fromkeys(("Reassembler", "Reassembly", "fragment", "md5", "reassemble"), "reassembly"),
}
"""The module of each public name; names that are not listed are in `exceptions`."""


def __getattr__(name: str) -> Any:
    if name not in __all__ and name != "spark":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "__version__":
        value: Any = _import_module("importlib.metadata").version(__name__)
    elif name in _MODULES:
        value = _import_module(f"{__name__}.{name}")
    else:
        value = getattr(_import_module(f"{__name__}.{_HOMES.get(name, 'exceptions')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    # `help` and `inspect` read every listed name, and accept no error but AttributeError.
    return sorted([*__all__, "spark"] if _find_spec("pyspark") is not None else __all__)


class _RenamedModule(_ModuleType):
    """A module that pickles of version 0.1 name, and that has been renamed since."""

    def __init__(self, name: str, home: str) -> None:
        super().__init__(name)
        self.__dict__["home"] = home

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_import_module(self.home), name)


for _name, _home in {"routing": "router", "reassembler": "reassembly"}.items():
    _sys.modules[f"{__name__}.{_name}"] = _RenamedModule(f"{__name__}.{_name}", f"{__name__}.{_home}")


def _open_instance(folder: Path) -> Instance:
    from ssbroker.broker.instance import Instance  # noqa: PLC0415  # imported only to load instance folders

    return Instance.open(folder, background=False)


_instance_folder.register_opener(_open_instance)
