"""A pandas index without a name is not a column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import ssbroker
from ssbroker import Catalog, Reassembler, Router, schemas

INDEX = "__index_level_0__"


def routes() -> pd.DataFrame:
    frame = pd.DataFrame({"database": "Sales", "name": ["Old", "Orders", "Tax"], "route_id": [1, 2, 3], "note": "x"})
    frame["remote_service_name"] = "//" + frame["name"]
    frame["address"] = "TCP://" + frame["name"].str.lower()
    return frame


def fragments() -> pd.DataFrame:
    sent = pa.table(
        {
            "conversation_id": [bytes(16)] * 2,
            "is_initiator": [True, True],
            "message_sequence_number": [0, 1],
            "message_body": [b"two chairs", b"one"],
            "note": ["a", "b"],
        }
    )
    frame: pd.DataFrame = ssbroker.fragment(sent, max_fragment_bytes=6).to_pandas()
    return frame


def filtered(frame: pd.DataFrame) -> pd.DataFrame:
    """Returns the frame without its first row, so that its index is not a range."""
    kept = frame[[number > 0 for number in range(len(frame))]]
    # As in a frame of selected rows.
    kept.index = pd.Index([number * number + 3 for number in range(len(kept))])
    assert INDEX in pa.Table.from_pandas(kept).column_names
    return kept


@pytest.mark.parametrize("from_file", [False, True])
def test_a_filtered_frame_gives_the_same_catalog(tmp_path: Path, *, from_file: bool) -> None:
    frame: Any = filtered(routes())
    if from_file:
        frame.to_parquet(tmp_path / "routes.parquet")
    catalog = Catalog.load(tmp_path) if from_file else Catalog(frame)
    assert catalog.routes.column_names == [*schemas.ROUTES.names, "note"]
    assert catalog == Catalog(frame.reset_index(drop=True))


def test_a_filtered_frame_of_conversations_is_routed() -> None:
    conversations = pd.DataFrame(
        {"conversation_id": [bytes(16)] * 3, "to_service_name": ["//Old", "//Orders", "//Tax"]}
    )
    decisions = Router(Catalog(routes())).route(filtered(conversations))
    assert decisions["next_hop_address"].to_pylist() == ["TCP://orders:4022", "TCP://tax:4022"]


def test_frames_with_and_without_an_index_can_be_mixed() -> None:
    frame, assembler = fragments(), Reassembler()
    assembler.push(frame.iloc[[0]])
    result = assembler.push(filtered(frame))
    assert result.messages["message_body"].to_pylist() == [b"two chairs", b"one"]
    assert result.messages.schema.names == [*schemas.MESSAGES.names, "note"]
    assert ssbroker.reassemble(frame.sort_values("fragment_number")).messages.schema.names == [
        *schemas.MESSAGES.names,
        "note",
    ]


def test_messages_of_a_filtered_frame_are_fragmented_without_the_index() -> None:
    messages: Any = ssbroker.reassemble(fragments()).messages
    cut = ssbroker.fragment(filtered(messages.to_pandas()), max_fragment_bytes=6)
    assert cut.schema.names == [*schemas.FRAGMENTS.names, "note"]


def test_an_index_with_a_name_is_an_extra_column() -> None:
    named = routes().set_index(pd.Index([5, 6, 8], name="from_excel"))
    assert Catalog(named).routes["from_excel"].to_pylist() == [5, 6, 8]
