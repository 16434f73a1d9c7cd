"""The choice between the two engines of `route`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

import pyarrow as pa

from ssbroker.catalog.catalog import Catalog
from ssbroker.exceptions import OptionError
from ssbroker.router import PendingRequest, Router, TieBreak
from ssbroker.spark import compat
from ssbroker.spark.decision_codes import Labels
from ssbroker.spark.decision_join_table import DecisionJoinTable
from ssbroker.spark.input_columns import BROKER_COLUMN, ID_COLUMNS
from ssbroker.spark.shared_values import BROADCAST_THRESHOLD, broadcasts_allowed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


Engine: TypeAlias = Literal["auto", "native", "arrow"]
"""How `route` routes: with joins in Spark (`native`), with Python in the executors (`arrow`), or with the faster of the two (`auto`)."""

_ROUTES_MAX: Final = 100_000
"""With more routes, building the broadcast costs more than the join saves."""
_ROUTES_MAX_AS_TEXT: Final = 10_000
_LISTED_IDS_MAX: Final = 64
"""The maximum number of broker ids of a service that are compared one after the other."""
_READS_NAMES: Final = (
    "a route for all services has the address TRANSPORT, and Python reads addresses in names faster than Spark"
)
_COMPILED_MAX: Final = 8_000
"""The longest method, in bytes, that the JVM compiles; longer methods are interpreted, which takes several times as long."""
_CACHED_MAX: Final = 4


@dataclass(frozen=True, kw_only=True)
class RouteEngine:
    """The engine that `route` uses, and the reason."""

    name: Literal["native", "arrow"]
    """`native` or `arrow`."""
    reason: str
    """Why this engine is used."""

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


_join_tables: Final[dict[tuple[object, ...], DecisionJoinTable]] = {}


def choose_engine(
    conversations: DataFrame,
    types: Mapping[str, pa.DataType],
    catalog: Catalog,
    labels: Labels,
    engine: Engine,
    *,
    now: datetime,
    tie_break: TieBreak,
    pending_request: PendingRequest,
) -> tuple[RouteEngine, DecisionJoinTable | None]:
    """Returns the engine and, for `native`, the decisions with which it joins the rows.

    Raises:
        OptionError: `engine` is not an engine, or `native` cannot route with this catalog.
    """
    if engine not in get_args(Engine):
        raise OptionError(f"engine: expected 'auto', 'native' or 'arrow', got {engine!r}")
    if engine == "arrow":
        return _arrow_because("engine='arrow' was given")
    if engine == "auto" and (reason := _reason_against_join(conversations, catalog)):
        return _arrow_because(reason)
    join_table = _join_table(catalog, labels, now=now, tie_break=tie_break, pending_request=pending_request)
    if join_table.why_incomplete is not None:
        if engine == "native":
            raise OptionError(
                f"engine: 'native' cannot use this catalog: {join_table.why_incomplete}; use 'auto' or 'arrow'"
            )
        return _arrow_because(join_table.why_incomplete)
    if engine == "native":
        return RouteEngine(name="native", reason="engine='native' was given"), join_table
    if join_table.listed_ids_max > _LISTED_IDS_MAX:
        return _arrow_because(
            f"a service has {join_table.listed_ids_max:,} broker ids, more than the {_LISTED_IDS_MAX} for which a join is used"
        )
    if join_table.reads_names:
        return _arrow_because(_READS_NAMES)
    if _method_bytes(conversations, types, join_table) > _COMPILED_MAX:
        return _arrow_because(
            "the code that Spark generates for this catalog and these columns is longer than the JVM can compile"
        )
    return RouteEngine(name="native", reason="a broadcast join with the decisions for each service name"), join_table


def _method_bytes(conversations: DataFrame, types: Mapping[str, pa.DataType], join_table: DecisionJoinTable) -> int:
    """Returns the approximate length of the longest method that Spark 4.3 generates for all columns."""
    text_ids = sum(types.get(name) == pa.string() for name in (*ID_COLUMNS, BROKER_COLUMN))
    return (
        3_700
        + 55 * len(conversations.columns)
        + 900 * text_ids
        + 600 * (join_table.candidates_max > 1)
        + 2_000 * (join_table.replies is not None and {"is_initiator", BROKER_COLUMN} <= types.keys())
    )


def _reason_against_join(conversations: DataFrame, catalog: Catalog) -> str:
    """Returns why a join is not used; empty if it can be used."""
    routes, most = catalog.routes.num_rows, _ROUTES_MAX if compat.has_arrow_frames() else _ROUTES_MAX_AS_TEXT
    if routes > most:
        return f"the catalog has {routes:,} routes, more than the {most:,} for which a join is used"
    if not broadcasts_allowed(conversations):
        return f"{BROADCAST_THRESHOLD} switches broadcasts off"
    return ""


def _arrow_because(reason: str) -> tuple[RouteEngine, None]:
    return RouteEngine(name="arrow", reason=reason), None


def _join_table(
    catalog: Catalog, labels: Labels, *, now: datetime, tie_break: TieBreak, pending_request: PendingRequest
) -> DecisionJoinTable:
    """Returns the decisions at a time, from the cache if no route has expired since they were computed."""
    key = (catalog.fingerprint, tie_break, pending_request)
    join_table = _join_tables.get(key)
    if join_table is None or not join_table.is_valid_at(now):
        _join_tables.pop(key, None)
        while len(_join_tables) >= _CACHED_MAX:
            del _join_tables[next(iter(_join_tables))]
        router = Router(catalog, tie_break=tie_break, pending_request=pending_request)
        _join_tables[key] = join_table = DecisionJoinTable.of(router, labels, now=now)
    return join_table
