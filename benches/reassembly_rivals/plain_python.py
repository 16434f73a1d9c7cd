"""A simple implementation: Python dicts, one fragment at a time."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from typing import Any, Final, TypeAlias

import pyarrow as pa

from ssbroker import schemas

Direction: TypeAlias = tuple[bytes, bool]
Messages: TypeAlias = dict[Direction, list[tuple[int, tuple[bytes, bytes]]]]
"""The messages of each direction by sequence number: the number, the body and the signature."""

_RESULT: Final = pa.schema([schemas.MESSAGES.field(name) for name in schemas.MESSAGES.names])


class PlainPython:
    """Takes and returns Python values: a message is joined once and never copied to Arrow."""

    name = "plain Python"

    def load(self, fragments: pa.Table) -> list[list[Any]]:
        return [fragments[name].to_pylist() for name in schemas.FRAGMENTS.names]

    def reassemble(self, columns: list[list[Any]]) -> Messages:
        md5 = hashlib.md5
        directions: defaultdict[Direction, dict[int, tuple[bytes, bytes]]] = defaultdict(dict)
        partial: defaultdict[tuple[bytes, bool, int], dict[int, bytes]] = defaultdict(dict)
        for conversation, is_initiator, sequence, number, count, body, signature, own in zip(*columns, strict=True):
            whole = directions[conversation, is_initiator]
            if sequence in whole:
                continue
            if own is not None and md5(body).digest() != own:
                raise ValueError("rivals accept only valid fragments")
            if count > 1:
                parts = partial[conversation, is_initiator, sequence]
                parts[number] = body
                if len(parts) < count:
                    continue
                del partial[conversation, is_initiator, sequence]
                message = b"".join([parts[place] for place in range(count)])
            else:
                message = body
            if md5(message).digest() != signature:
                raise ValueError("rivals accept only valid fragments")
            whole[sequence] = message, signature
        if partial:
            raise ValueError("rivals accept only complete messages")
        return {direction: sorted(whole.items()) for direction, whole in directions.items()}

    def messages(self, result: Messages) -> pa.Table:
        rows = [
            (conversation, is_initiator, sequence, body, signature)
            for (conversation, is_initiator), whole in result.items()
            for sequence, (body, signature) in whole
        ]
        columns = [pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), _RESULT, strict=True)]
        return pa.Table.from_arrays(columns, schema=_RESULT)
