"""Which message types a side may send."""

from __future__ import annotations

import pytest

from ssbroker.broker.database import Database
from ssbroker.exceptions import BrokerError
from tests.broker import dialog_calls
from tests.broker.conftest import INITIATOR


@pytest.fixture
def sale(sales: Database) -> Database:
    """A service whose contract has a type for each side, and one for both."""
    sent_by = {"//Ask": "INITIATOR", "//Answer": "TARGET", "//Both": "ANY"}
    for name in (*sent_by, "//Unlisted"):
        sales.create_message_type(name)
    sales.create_contract("//Sale", sent_by)  # type: ignore[arg-type]  # the literals are right
    sales.create_service("//Till", queue="Orders", contracts=["//Sale"])
    return sales


FROM_INITIATOR = {"//Ask": None, "//Both": None, "//Answer": 8432, "//Unlisted": 8431, "DEFAULT": 8431, "//None": 8428}
FROM_TARGET = {"//Answer": None, "//Both": None, "//Ask": 8434, "//Unlisted": 8431, "DEFAULT": 8431, "//None": 8428}


def test_send_rejects_types_that_the_contract_does_not_allow(sale: Database) -> None:
    with sale.transaction() as t:
        initiator = t.begin_dialog(INITIATOR, "//Till", contract="//Sale")
        t.send(initiator, message_type="//Ask")
    target = dialog_calls.far_handle(sale, initiator)
    for side, expected in ((initiator, FROM_INITIATOR), (target, FROM_TARGET)):
        for name, number in expected.items():
            with sale.transaction() as t:
                if number is None:
                    t.send(side, message_type=name)
                    continue
                before = dialog_calls.contents(sale, t.connection)
                with pytest.raises(BrokerError) as refused:
                    t.send(side, message_type=name)
                assert refused.value.number == number
                assert dialog_calls.contents(sale, t.connection) == before
    assert (dialog_calls.state(sale, initiator), dialog_calls.state(sale, target)) == ("CO", "CO")


def test_names_compare_byte_by_byte(sale: Database) -> None:
    with sale.transaction() as t:
        for from_service, contract in (("//shop", "//Sale"), (INITIATOR, "//sale")):
            with pytest.raises(BrokerError, match="did you mean"):
                t.begin_dialog(from_service, "//Till", contract=contract)
        dialog = t.begin_dialog(INITIATOR, "//till", contract="//Sale")
        with pytest.raises(BrokerError, match="8428"):
            t.send(dialog, message_type="//ask")
        t.send(dialog, message_type="//Ask")
    assert dialog_calls.waiting(sale) == 1
