"""pyarrow and numpy: sorts the positions of fragments as numbers, and takes the bodies in that order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from benches.columns import column
from benches.reassembly_rivals.sorted_parts import messages_of


class ArrowSort:
    """Sorting 64-bit numbers is several times faster than sorting rows of four columns."""

    name = "pyarrow sort"

    def load(self, fragments: pa.Table) -> pa.Table:
        # `take` is slower with several chunks.
        return fragments.combine_chunks()

    def reassemble(self, fragments: pa.Table) -> pa.Table:
        conversations: Any = fragments["conversation_id"].chunk(0).dictionary_encode()
        columns = [
            conversations.indices.to_numpy(),
            fragments["is_initiator"].to_numpy().astype(np.int32),
            fragments["message_sequence_number"].to_numpy(),
            fragments["fragment_number"].to_numpy(),
        ]
        # Raises ValueError if the product of the ranges exceeds 64 bits.
        place = np.ravel_multi_index(columns, [int(values.max()) + 1 for values in columns])
        order = np.argsort(place)
        is_first = np.concatenate([[True], np.diff(place[order]) != 0])
        if not is_first.all():
            order = order[is_first]
        return messages_of(fragments.take(column(order)))

    def messages(self, result: pa.Table) -> pa.Table:
        return result
