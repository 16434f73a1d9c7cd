"""pyarrow and numpy: each fragment's place as one number, these sorted, and the bodies taken in that order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from benches.columns import column
from benches.reassembly_rivals.sorted_parts import messages_of


class ArrowSort:
    """Numbers of 64 bits are sorted several times faster than rows of four columns."""

    name = "pyarrow sort"

    def load(self, fragments: pa.Table) -> pa.Table:
        # One chunk for each column: `take` from many is slower.
        return fragments.combine_chunks()

    def reassemble(self, fragments: pa.Table) -> pa.Table:
        conversations: Any = fragments["conversation_id"].chunk(0).dictionary_encode()
        columns = [
            conversations.indices.to_numpy(),
            fragments["is_initiator"].to_numpy().astype(np.int32),
            fragments["message_sequence_number"].to_numpy(),
            fragments["fragment_number"].to_numpy(),
        ]
        # A ValueError if the product of the ranges is more than 64 bits hold.
        place = np.ravel_multi_index(columns, [int(values.max()) + 1 for values in columns])
        order = np.argsort(place)
        is_first = np.concatenate([[True], np.diff(place[order]) != 0])
        if not is_first.all():
            order = order[is_first]
        return messages_of(fragments.take(column(order)))

    def messages(self, result: pa.Table) -> pa.Table:
        return result
