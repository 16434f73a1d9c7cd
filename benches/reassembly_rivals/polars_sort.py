"""Polars: sorting moves only references to the bodies; exporting to Arrow writes them one after the other."""

from __future__ import annotations

import polars as pl
import pyarrow as pa

from benches.reassembly_rivals.sorted_parts import KEYS, messages_of


class PolarsSort:
    """Grouping by message would be faster, but returns lists of fragments, and Polars cannot join binary values."""

    name = "Polars sort"

    def load(self, fragments: pa.Table) -> pl.DataFrame:
        if pl.thread_pool_size() != 1:
            raise RuntimeError("set POLARS_MAX_THREADS=1 before polars is imported: all rivals use one thread")
        frame = pl.from_arrow(fragments)
        if not isinstance(frame, pl.DataFrame):
            raise TypeError("a table becomes a frame")
        return frame.rechunk()

    def reassemble(self, fragments: pl.DataFrame) -> pa.Table:
        ordered = fragments.sort(KEYS)
        same = [(ordered[name] == ordered[name].shift()).fill_null(value=False) for name in KEYS]
        again = same[0] & same[1] & same[2] & same[3]
        if again.any():
            ordered = ordered.filter(~again)
        return messages_of(ordered.rechunk().to_arrow(compat_level=pl.CompatLevel.oldest()))

    def messages(self, result: pa.Table) -> pa.Table:
        return result
