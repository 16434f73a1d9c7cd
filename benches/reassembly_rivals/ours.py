"""ssbroker: all fragments in one call, or one push per chunk."""

from __future__ import annotations

import pyarrow as pa

import ssbroker


class Ours:
    """One call for the whole table."""

    name = "ssbroker"

    def load(self, fragments: pa.Table) -> pa.Table:
        return fragments

    def reassemble(self, fragments: pa.Table) -> pa.Table:
        result = ssbroker.reassemble(fragments)
        _require_no_rejections(result.rejected)
        return result.messages

    def messages(self, result: pa.Table) -> pa.Table:
        return result


class OursPushed:
    """One push per chunk; incomplete messages wait in the reassembler."""

    name = "ssbroker, in chunks"

    def load(self, fragments: pa.Table) -> list[pa.RecordBatch]:
        return fragments.to_batches()

    def reassemble(self, batches: list[pa.RecordBatch]) -> pa.Table:
        reassembler = ssbroker.Reassembler(max_pending_bytes=None, max_pending_messages=None)
        results = [reassembler.push(batch) for batch in batches]
        for result in results:
            _require_no_rejections(result.rejected)
        return pa.concat_tables([result.messages for result in results])

    def messages(self, result: pa.Table) -> pa.Table:
        return result


def _require_no_rejections(rejected: pa.Table) -> None:
    if set(rejected["reason"].unique().to_pylist()) - {"duplicate"}:
        raise ValueError("complete and valid messages were rejected")
