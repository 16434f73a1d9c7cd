"""Arguments that only a caller of the native module can pass wrongly are errors, too."""

from __future__ import annotations

from typing import Any

import apsw
import pyarrow as pa
import pytest

from ssbroker import MalformedDataError, _core
from tests.routing.conversations import CATALOG, Capsule, conversations

ROUTER = _core.Router(CATALOG.native, tie_break="hash", pending_request="continue")


class SameCapsules(Capsule):
    """Returns the same capsules whenever an array is requested."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> Any:
        return self._value


def test_an_array_that_was_imported_before() -> None:
    batch: Any = conversations(["//Orders"])
    given = SameCapsules(batch.__arrow_c_array__())
    assert ROUTER.route(given, 0, 0).num_rows == 1
    with pytest.raises(MalformedDataError, match="has been released, probably by an earlier import"):
        ROUTER.route(given, 0, 0)


def test_an_array_that_is_no_batch() -> None:
    with pytest.raises(MalformedDataError, match="expected the type struct, got string"):
        ROUTER.route(pa.array(["a"]), 0, 0)


def test_statements_need_a_connection_of_apsw() -> None:
    class Pointer:
        filename = "file"

        def sqlite3_pointer(self) -> int:
            return 4096

    with pytest.raises(TypeError, match=r"expected an apsw\.Connection"):
        _core.Statements(Pointer())
    with pytest.raises(apsw.ConnectionClosedError):
        closed = apsw.Connection(":memory:")
        closed.close()
        _core.Statements(closed)
