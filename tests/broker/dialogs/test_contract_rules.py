"""Who may send which message types, and which priority a conversation gets."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssbroker._well_known import ERROR
from ssbroker.broker.database import Database
from ssbroker.broker.dialogs.broker_priorities import priority_of_endpoint
from ssbroker.broker.dialogs.message import ConversationError, read_failure
from ssbroker.exceptions import BrokerError
from ssbroker.store.objects import Broker, Objects, Priority
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


def test_the_body_of_an_error() -> None:
    assert ConversationError(42, 'a <b> & "c"').body() == (
        b'<Error xmlns="http://schemas.microsoft.com/SQL/ServiceBroker/Error"><Code>42</Code>'
        b'<Description>a &lt;b&gt; &amp; "c"</Description></Error>'
    )


@given(st.text(), st.integers(-(2**31), 2**31 - 1))
def test_the_body_of_an_error_is_always_well_formed(description: str, code: int) -> None:
    root = ET.fromstring(ConversationError(code, description).body())
    assert [child.tag for child in root] == [f"{{{ERROR}}}Code", f"{{{ERROR}}}Description"]
    assert root[0].text == str(code)
    if description.isprintable():
        assert (root[1].text or "") == description


def objects_with(*priorities: Priority) -> Objects:
    return Objects(
        version=1,
        broker=Broker(bytes(16), is_broker_enabled=True, is_honor_broker_priority_on=False),
        message_types={},
        contracts={},
        queues={},
        services={},
        routes={},
        priorities={one.name: one for one in priorities},
    )


# The best match first: contract, local service and remote service, each named or ANY.
ORDER = ["CLR", "CL*", "C*R", "C**", "*LR", "*L*", "**R", "***"]


def create_priority(pattern: str, level: int) -> Priority:
    contract, local, remote = (letter != "*" for letter in pattern)
    return Priority(level, pattern, 7 if contract else None, 8 if local else None, "//R" if remote else None, level)


@pytest.mark.parametrize("worst", range(len(ORDER)))
def test_the_most_specific_priority_wins(worst: int) -> None:
    priorities_in_order = [create_priority(pattern, level) for level, pattern in enumerate(ORDER[worst:], start=1)]
    for one in (priorities_in_order, priorities_in_order[::-1]):
        assert priority_of_endpoint(objects_with(*one), service_contract_id=7, service_id=8, far_service="//R") == 1


def test_a_priority_for_other_services_does_not_apply() -> None:
    every = objects_with(*(create_priority(pattern, 9) for pattern in ORDER[:-1]))
    for contract, local, remote in product((7, 1), (8, 1), ("//R", "//r")):
        found = priority_of_endpoint(every, service_contract_id=contract, service_id=local, far_service=remote)
        assert found == (5 if (contract, local, remote) == (1, 1, "//r") else 9)


def test_each_endpoint_has_its_own_constant_priority(sales: Database) -> None:
    sales.create_broker_priority("Ours", local_service=INITIATOR, level=3)
    initiator = dialog_calls.begin(sales, b"x")
    sales.alter_broker_priority("Ours", level=8)
    target = dialog_calls.far_handle(sales, initiator)
    for side, expected in ((initiator, 3), (target, 5)):
        found = dialog_calls.endpoint(sales, side)
        assert found is not None
        assert found.priority == expected


@pytest.mark.parametrize("reference", [b"&#%s;" % (b"9" * 5000), b"&#x%s;" % (b"f" * 5000)])
def test_an_error_with_unreadable_character_references_is_read_partly(reference: bytes) -> None:
    body = b"<Error><Code>-1</Code><Description>%s</Description></Error>" % reference
    found = read_failure(body)
    assert found is None or found.code == -1
