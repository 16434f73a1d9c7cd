"""What pyarrow before 25 makes of a cast to views ended the process when it was handed over."""

from __future__ import annotations

from types import SimpleNamespace

import pyarrow as pa
import pytest

from ssbroker import Router, arrow_views
from ssbroker.exceptions import MalformedDataError
from tests.unit.conversations import CATALOG, NOW

SHORT = SimpleNamespace(type=pa.string_view(), buffers=lambda: [None, pa.py_buffer(bytes(16)), None])
"""Such an array, which pyarrow from 25 on does not make."""


def test_what_cannot_be_handed_over_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_views, "_HANDS_OVER", False)
    with pytest.raises(MalformedDataError, match=r"^name: pyarrow .* cannot hand over this array of type string_view"):
        arrow_views.check_views(SHORT, name="name")


def test_other_views_are_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_views, "_HANDS_OVER", False)
    names = pa.array(["//Orders", None, "//a name of more than twelve bytes"], pa.string_view())
    arrow_views.check_views(names, name="names")
    arrow_views.check_views(pa.chunked_array([names, names]), name="names")
    arrow_views.check_views(pa.table({"names": names}), name="table")


def test_a_cast_to_views_is_routed_or_refused_and_ends_no_process() -> None:
    """With the oldest pyarrow that we ask for it is refused, with the newest routed."""
    batch = pa.record_batch({"database": ["Sales"], "to_service_name": pa.array(["//Orders"]).cast(pa.string_view())})
    try:
        assert Router(CATALOG, tie_break="first").route(batch, now=NOW).num_rows == 1
    except MalformedDataError as error:
        assert "cannot hand over" in str(error)  # noqa: PT017 - only some versions raise
