"""Decision codes: outcome, reason and step of a decision in one integer; `decision_encoding` transfers whole decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ssbroker.catalog.catalog import Catalog
from ssbroker.schemas import DECISIONS
from ssbroker.spark.arrow_columns import pc

if TYPE_CHECKING:
    from pyspark.sql import Column


DECISION_STRUCT: Final = (
    "struct<outcome:string,match_step:tinyint,route_id:int,next_hop_address:string,mirror_address:string,"
    "target_database:string,broker_instance:binary,reason:string>"
)
"""The decision columns as Spark types: labels as strings, ids as 16 bytes."""

DECISION_CODE: Final = "verdict"
"""The field with the decision code: outcome, reason and step in one number. The rows of streams contain this column, so its name must not change."""

CODED_FIELDS: Final = {
    DECISION_CODE: "smallint",
    "route_id": "int",
    "next_hop_address": "string",
    "mirror_address": "string",
    "target_database": "string",
    "broker_instance": "binary",
}
"""The fields of a decision, with outcome, reason and step in a decision code: decoding it in Spark costs less than transferring strings."""
_ARROW_TYPES: Final[dict[str, pa.DataType]] = {
    "smallint": pa.int16(),
    "int": pa.int32(),
    "string": pa.string(),
    "binary": pa.binary(),
}
CODED_ARROW_TYPES: Final = {name: _ARROW_TYPES[sql_type] for name, sql_type in CODED_FIELDS.items()}
"""The Arrow types of `CODED_FIELDS`."""

LABEL_BITS: Final = {"outcome": (8, 0xFF), "reason": (4, 15)}
"""The position of each label in a decision code: the shift and the mask. The step is in the lowest bits."""
NO_STEP: Final = 15
"""The code of a null step in a decision code, and the mask of steps."""


@dataclass(frozen=True, kw_only=True)
class Labels:
    """The outcomes and reasons, in the order of their codes in a decision code."""

    outcomes: tuple[str, ...]
    reasons: tuple[str, ...]

    def codes(self, decided: pa.RecordBatch) -> Any:
        """Returns the decision codes; null if the outcome is null."""
        outcome = _label_codes(decided, "outcome", self.outcomes)
        reason = _label_codes(decided, "reason", self.reasons)
        step: Any = decided["match_step"].cast(pa.int16())
        return pc.add(pc.add(outcome, reason), step.fill_null(NO_STEP))

    def decode(self, coded: Mapping[str, Column]) -> dict[str, Column]:
        """Returns the decision columns, in contract order, from the columns of `CODED_FIELDS`; missing columns become null."""
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        decision_code = coded[DECISION_CODE]
        (outcome_shift, _), (reason_shift, reason_mask) = LABEL_BITS["outcome"], LABEL_BITS["reason"]
        step = decision_code.bitwiseAND(NO_STEP)
        from_code = {
            "outcome": sf.get(sf.array(*map(sf.lit, self.outcomes)), sf.shiftright(decision_code, outcome_shift)),
            "reason": sf.get(
                sf.array(*map(sf.lit, self.reasons)), sf.shiftright(decision_code, reason_shift).bitwiseAND(reason_mask)
            ),
            "match_step": sf.when(step != NO_STEP, step.cast("tinyint")),
        }
        missing = {name: sf.lit(None).cast(kind) for name, kind in CODED_FIELDS.items() if name not in coded}
        found = {**coded, **missing, **from_code}
        return {name: found[name] for name in DECISIONS.names}


def _label_codes(decided: pa.RecordBatch, name: str, labels: tuple[str, ...]) -> Any:
    """Returns the code of each row's label, shifted to its position in a decision code; the dictionary of the column may have any order."""
    shift, _ = LABEL_BITS[name]
    column: Any = decided[name]
    encoded = column.dictionary_encode()
    codes = [labels.index(label) << shift for label in encoded.dictionary.to_pylist()]
    return pa.array(codes, pa.int16()).take(encoded.indices)


def possible_fields(catalog: Catalog) -> dict[str, str]:
    """Returns the fields in `CODED_FIELDS` that decisions by this catalog can contain; other fields are always null and are not transferred."""
    never = set()
    if not catalog.has_mirrors:
        never.add("mirror_address")
    if not catalog.has_services:
        never.add("target_database")
    return {name: kind for name, kind in CODED_FIELDS.items() if name not in never}
