"""How the messages of a stream are routed, checked before a query starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from ssbroker import options
from ssbroker.catalog import Catalog
from ssbroker.routing import PendingRequest, TieBreak
from ssbroker.spark import columns
from ssbroker.spark.shipping import ship
from ssbroker.spark.streams import catalogs
from ssbroker.spark.streams.catalogs import AtPath, Fixed, Source
from ssbroker.spark.streams.options import DELAYED_BYTES_MAX, catalog_given, microseconds
from ssbroker.spark.streams.task import Routing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PATIENCE: Final = "catalog_patience"


@dataclass(frozen=True, kw_only=True)
class Forwarding:
    """How messages are routed.

    Attributes:
        catalog: As of `stream`, like all that follow.
        tie_break: The same.
        pending_request: The same.
        max_delayed_bytes: The same.
        catalog_patience: The same.

    Raises:
        OptionError: One is not what it can be.
    """

    catalog: Catalog | str | os.PathLike[str]
    tie_break: TieBreak
    pending_request: PendingRequest
    max_delayed_bytes: int
    catalog_patience: timedelta

    def __post_init__(self) -> None:
        catalog_given(self.catalog)
        columns.check_tie_break(self.tie_break)
        options.whole(self.max_delayed_bytes, name="max_delayed_bytes", least=0, most=DELAYED_BYTES_MAX)
        microseconds(self.catalog_patience, name=_PATIENCE, least=timedelta(0))

    def routing(
        self,
        spark: SparkSession,
        types: Mapping[str, pa.DataType],
        names: Mapping[str, str],
        *,
        direction: tuple[str, ...] | None,
    ) -> Routing:
        """What the workers are told.

        Args:
            spark: The session.
            types: The columns of conversations that there are, and their types.
            names: Their names in messages.
            direction: The columns of what goes in order, None where each row is for itself.

        Returns:
            The same, checked.

        Raises:
            SchemaError: A column is missing or has a type that cannot be read.
            OptionError: An option is not what it can be.
            InputError: There is no catalog at the path.
        """
        given = catalog_given(self.catalog)
        catalog = given if isinstance(given, Catalog) else catalogs.load(Path(given))
        labels = columns.rehearse(catalog, types, tie_break=self.tie_break, pending_request=self.pending_request)
        source: Source = Fixed(ship(spark, given, in_stream=True)) if isinstance(given, Catalog) else self._at(given)
        return Routing(
            source=source,
            tie_break=self.tie_break,
            pending_request=self.pending_request,
            labels=labels,
            names=names,
            direction=direction,
            max_delayed_bytes=self.max_delayed_bytes,
        )

    def _at(self, path: str) -> AtPath:
        return AtPath(path, microseconds(self.catalog_patience, name=_PATIENCE, least=timedelta(0)))
