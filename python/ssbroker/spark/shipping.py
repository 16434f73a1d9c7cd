"""A catalog on its way to the workers: once for each session, whatever the number of jobs and DataFrames.

Classic Spark has broadcast variables, which it drops when nothing needs them. Spark Connect has none: there the catalog is an
artifact of the session, a file named by its content.
"""

from __future__ import annotations

import hashlib
import pickle
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ssbroker.catalog import Catalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BROADCASTS_MAX: Final = 4


@dataclass(frozen=True)
class ShippedCatalog:
    """Where a worker finds a catalog; two are equal when the catalogs say the same.

    Attributes:
        fingerprint: The catalog's.
    """

    fingerprint: str

    def catalog(self) -> Catalog:
        """The catalog, in a worker."""
        raise NotImplementedError


@dataclass(frozen=True)
class _Broadcast(ShippedCatalog):
    variable: Any = field(compare=False)

    def catalog(self) -> Catalog:
        catalog: Catalog = self.variable.value
        return catalog


@dataclass(frozen=True)
class _Artifact(ShippedCatalog):
    file: str = field(compare=False)

    def catalog(self) -> Catalog:
        from pyspark import SparkFiles  # noqa: PLC0415 - pyspark is an extra

        # The file comes from the same client as the function that reads it, which could do anything as well.
        catalog: Catalog = pickle.loads(Path(SparkFiles.get(self.file)).read_bytes())  # noqa: S301
        return catalog


_broadcasts: Final[dict[tuple[str, str], _Broadcast]] = {}
_artifacts: Final[dict[tuple[str, str], _Artifact]] = {}


def ship(spark: SparkSession, catalog: Catalog) -> ShippedCatalog:
    """Hands a catalog to the workers of a session, unless they have it.

    Args:
        spark: The session.
        catalog: The catalog.

    Returns:
        Where the workers find it.
    """
    if not hasattr(spark, "sparkContext"):
        return _as_artifact(spark, catalog)
    context = spark.sparkContext
    key = (str(context.applicationId), catalog.fingerprint)
    if key not in _broadcasts:
        # A broadcast is freed when the last DataFrame that needs it is; so to forget an old one here loses nothing.
        while len(_broadcasts) >= _BROADCASTS_MAX:
            del _broadcasts[next(iter(_broadcasts))]
        _broadcasts[key] = _Broadcast(catalog.fingerprint, context.broadcast(catalog))
    return _broadcasts[key]


def _as_artifact(spark: SparkSession, catalog: Catalog) -> ShippedCatalog:
    session: Any = spark
    key = (str(session.session_id), catalog.fingerprint)
    if key not in _artifacts:
        content = pickle.dumps(catalog, protocol=pickle.HIGHEST_PROTOCOL)
        name = f"ssbroker-{hashlib.sha256(content).hexdigest()}.catalog"
        with tempfile.TemporaryDirectory(prefix="ssbroker-") as folder:
            path = Path(folder, name)
            path.write_bytes(content)
            spark.addArtifact(str(path), file=True)
        _artifacts[key] = _Artifact(catalog.fingerprint, name)
    return _artifacts[key]
