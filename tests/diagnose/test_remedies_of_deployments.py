"""Remedies of deployments as database administrators have them: they repair what the finding is about, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ssbroker.diagnose import lint, trace
from ssbroker.diagnose.check_context import CheckContext
from ssbroker.diagnose.problems import Problem
from ssbroker.diagnose.service_checks import check_listening_msdb, check_own_services
from tests.diagnose.script_fleets import after, found, host, loaded, names_in, to
from tests.worlds.universe import NOW

EXPIRING = ", LIFETIME = 864000"


def test_remedy_changes_no_unrelated_route(tmp_path: Path) -> None:
    """A route behind the changed one gets another id in the copy, which makes its error no new one."""
    local = "CREATE ROUTE LocalOne WITH SERVICE_NAME = '//Local', ADDRESS = 'LOCAL'"
    whole = loaded(tmp_path, A=host("A", service="//A", routes=to("Expiring", "//B", "b.corp", more=EXPIRING) + local))
    assert names_in(found(whole, "SSB004").scripts) == {"Expiring"}


def test_error_of_another_conversation_is_not_part_of_a_remedy(tmp_path: Path) -> None:
    misspelt = "CREATE ROUTE Dup WITH SERVICE_NAME = '//a', ADDRESS = 'LOCAL'\n"
    local = "CREATE ROUTE LocalOne WITH SERVICE_NAME = '//Local', ADDRESS = 'LOCAL'\n"
    whole = loaded(tmp_path, A=host("A", service="//A", routes=local + misspelt))
    findings = lint(whole, at=NOW)
    assert any(finding.scripts for finding in findings)
    for finding in findings:
        assert names_in(finding.scripts) <= {finding.object.removeprefix("route ").strip('"')}


@pytest.mark.parametrize("more", ["", "CREATE ROUTE Reply WITH ADDRESS = 'TRANSPORT'\n"])
def test_route_is_not_dropped_because_an_unknown_gateway_takes_everything(more: str, tmp_path: Path) -> None:
    local = "CREATE ROUTE LocalOne WITH SERVICE_NAME = '//Local', ADDRESS = 'LOCAL'\n"
    gateway = "CREATE ROUTE Any WITH ADDRESS = 'TCP://gw:4022'\n"
    whole = loaded(tmp_path, A=host("A", service="//A", routes=local + gateway + more))
    assert found(whole, "SSB008").scripts == ()


@pytest.mark.parametrize("table", ["A", "msdb"])
def test_route_is_dropped_only_if_its_table_uses_the_address_in_the_name(table: str, tmp_path: Path) -> None:
    local = "CREATE ROUTE LocalOne WITH SERVICE_NAME = 'TCP://local.corp:4022/Local', ADDRESS = 'LOCAL'\n"
    other = f"\nGO\nUSE {table}\nCREATE ROUTE Any WITH ADDRESS = 'TRANSPORT'"
    whole = loaded(tmp_path, A=host("A", service="//A", routes=local, after=other))
    assert names_in(found(whole, "SSB008").scripts) == ({"LocalOne"} if table == "A" else set())


ONE = "11111111-0000-4000-8000-000000000001"
TWO = "22222222-0000-4000-8000-000000000002"
TO_COPIES = to("B1", "//B", "b1.corp") + to("B2", "//B", "b2.corp")
TO_A = to("A", "//A", "a.corp")
TO_B = to("B", "//B", "b.corp")


def test_target_that_shares_the_load_is_kept_if_ids_are_unknown(tmp_path: Path) -> None:
    whole = loaded(
        tmp_path,
        A=host("A", service="//A", routes=TO_COPIES),
        B1=host("B1", service="//B", routes=TO_A),
        B2=host("B2", service="//B"),
    )
    finding = next(each for each in lint(whole, at=NOW) if each.instance == "A")
    assert finding.scripts == ()
    assert "for each database that starts conversations, create a route in" in finding.remedy


def test_misspelled_routes_and_the_correct_names_are_in_the_findings(tmp_path: Path) -> None:
    """The initiator's route is found by the drop at the target, and the return route also by the missing way back."""
    orders, stock = "//net.example/Orders", "//net.example/Stock"
    shop = host("Shop", service=orders, routes=to("Stock", stock, "stocks.corp"))
    misspelled = host("Shop", service=orders, routes=to("Stock", "//net.example/Stokc", "stocks.corp"))
    stocks = host("Stocks", service=stock, routes=to("Back", "//net.example/Order", "shop.corp"))
    whole = loaded(tmp_path, Shop=shop, Stocks=stocks)
    alter = f"USE [Stocks]; ALTER ROUTE [Back] WITH SERVICE_NAME = N'{orders}';"
    assert found(whole, "SSB017").scripts == (("Stocks", alter),)
    assert f'The route "Back" is for the similar service "{orders[:-1]}"' in found(whole, "SSB017").message
    assert f'this instance has the similar service "{orders}"' in found(whole, "SSB024").message
    whole = loaded(tmp_path, Shop=misspelled, Stocks=host("Stocks", service=stock))
    assert found(whole, "SSB024").remedy == (
        "If this service is meant, correct the name in BEGIN DIALOG and in the routes. "
        f"In Shop: USE [Shop]; ALTER ROUTE [Stock] WITH SERVICE_NAME = N'{stock}';"
    )


def test_copies_that_start_conversations_get_routes_with_their_ids(tmp_path: Path) -> None:
    whole = loaded(
        tmp_path,
        A=host("A", service="//A", routes=TO_COPIES),
        B1=host("B1", service="//B", routes=TO_A, broker_id=ONE),
        B2=host("B2", service="//B", routes=TO_A, broker_id=TWO),
    )
    repaired = after(tmp_path, found(whole, "SSB017"))
    assert not lint(repaired, at=NOW).at_least("error")
    assert {end.instance for end in trace(repaired, "//B", instance="A", at=NOW).possible} == {"B1", "B2"}


REPLICA = host("A", service="//A", routes=TO_B, broker_id=ONE, addresses="{}", after="{}")
DISABLED = "ALTER DATABASE A SET DISABLE_BROKER"


@pytest.mark.parametrize(
    "addresses", ["TCP://{}.corp:4022,TCP://listener.corp:4022", "TCP://listener.corp:4022,TCP://{}.corp:4022"]
)
def test_return_route_to_an_availability_group_leads_to_its_listener(addresses: str, tmp_path: Path) -> None:
    whole = loaded(
        tmp_path,
        n1=REPLICA.format(addresses.format("n1"), ""),
        n2=REPLICA.format(addresses.format("n2"), DISABLED),
        B=host("B", service="//B"),
    )
    (script,) = found(whole, "SSB017").scripts
    assert script[1].endswith("ADDRESS = N'TCP://listener.corp:4022';")


@pytest.mark.parametrize("state", ["", DISABLED])
@pytest.mark.parametrize("broken", [("n1",), ("n2",), ("n1", "n2")])
def test_messages_that_any_replica_drops_are_found(broken: tuple[str, ...], state: str, tmp_path: Path) -> None:
    """msdb is not part of the availability group, so each replica needs its own routes in msdb."""
    target = host("A", service="//A", routes=TO_B if state else "", broker_id=ONE, addresses="{}", after="{}")
    drop = "GO\nUSE msdb\nDROP ROUTE AutoCreatedLocal\n"
    replicas = {
        name: target.format(
            f"TCP://{name}.corp:4022,TCP://listener.corp:4022",
            f"{state if name == 'n2' else ''}\n{drop if name in broken else ''}",
        )
        for name in ("n1", "n2")
    }
    sender = host("B", service="//B", routes=to("A", "//A", "listener.corp"))
    findings = [
        each
        for each in lint(loaded(tmp_path, B=sender, **replicas), at=NOW)
        if each.severity != "info" and each.code != "SSB017"
    ]
    assert [(each.code, each.instance, each.database) for each in findings] == [
        ("SSB024", name, "msdb") for name in broken
    ]
    for each in findings:
        assert each.message.startswith("after a failover to this replica, ") == (each.instance == "n2")
        create = "USE [msdb]; CREATE ROUTE [AutoCreatedLocal] WITH ADDRESS = N'LOCAL';"
        assert each.scripts[0] == (each.instance, create)


@pytest.mark.parametrize("others", [0, 1])
def test_return_route_to_a_mirrored_pair_is_mirrored(others: int, tmp_path: Path) -> None:
    """Other databases of the two instances may be mirrored too."""
    more = f"\nGO\nCREATE DATABASE Other -- ssbroker: service_broker_guid={TWO}\n" * others
    mirrored = f", BROKER_INSTANCE = '{ONE}', MIRROR_ADDRESS = 'TCP://a2.corp:4022'"
    other = to("Other", "//Other", "a1.corp", more=mirrored.replace(ONE, TWO))
    routes = TO_B + to("C", "//C", "c.corp")
    whole = loaded(
        tmp_path,
        A1=host("A", service="//A", routes=routes, broker_id=ONE, addresses="TCP://a1.corp:4022", after=more),
        A2=host(
            "A", service="//A", routes=routes, broker_id=ONE, addresses="TCP://a2.corp:4022", after=DISABLED + more
        ),
        B=host("B", service="//B"),
        C=host("C", service="//C", routes=to("A", "//A", "a1.corp", more=mirrored) + other * others),
    )
    (script,) = found(whole, "SSB017").scripts
    clauses = f"BROKER_INSTANCE = N'{ONE}', ADDRESS = N'TCP://a1.corp:4022', MIRROR_ADDRESS = N'TCP://a2.corp:4022'"
    assert script == ("B", f"USE [B]; CREATE ROUTE [A] WITH SERVICE_NAME = N'//A', {clauses};")


def test_mirrored_route_is_not_replaced_by_another_one(tmp_path: Path) -> None:
    mirrored = f", BROKER_INSTANCE = '{ONE}', MIRROR_ADDRESS = 'TCP://a2.corp:4022'"
    principal = host("A", service="//A", routes=TO_B, broker_id=ONE, addresses="TCP://a1.corp:4022")
    whole = loaded(
        tmp_path,
        A1=f"{principal}\nGO\nALTER DATABASE A SET NEW_BROKER",
        A2=host("A", service="//A", routes=TO_B, broker_id=ONE, addresses="TCP://a2.corp:4022", after=DISABLED),
        B=host("B", service="//B", routes=to("A", "//A", "a1.corp", more=mirrored)),
    )
    for finding in lint(whole, at=NOW):
        assert finding.scripts == ()
    assert 'BROKER_INSTANCE of the mirrored route "A"' in found(whole, "SSB017").remedy


@pytest.mark.parametrize("way_back", ["complete", "missing in the first", "missing in the second", "missing in both"])
def test_return_route_leads_to_the_gateway_that_forwards(way_back: str, tmp_path: Path) -> None:
    """Only gateways reach the networks at both of their ends."""
    first = to("A", "//A", "a.corp") if way_back in ("complete", "missing in the second") else ""
    second = to("A", "//A", "gw1.corp") if way_back in ("complete", "missing in the first") else ""
    whole = loaded(
        tmp_path,
        A=host("A", service="//A", routes=to("B", "//B", "gw1.corp")),
        GW1=host("GW1", msdb=to("B", "//B", "gw2.corp") + first),
        GW2=host("GW2", msdb=to("B", "//B", "b.corp") + second),
        B=host("B", service="//B"),
    )
    repaired = after(tmp_path, found(whole, "SSB017"))
    back = trace(repaired, "//B", instance="A", at=NOW).acknowledgement
    assert back is not None
    assert [hop.instance for hop in back.hops] == ["B", "GW2", "GW1", "A"]
    assert back.end.outcome == "DELIVERED"


def test_loop_has_only_advice_if_no_instance_has_the_service(tmp_path: Path) -> None:
    whole = loaded(
        tmp_path,
        A=host("A", service="//A", routes=to("B", "//B", "gw1.corp")),
        GW1=host("GW1", msdb=to("B", "//B", "gw2.corp")),
        GW2=host("GW2", msdb=to("B", "//B", "gw3.corp")),
        GW3=host("GW3", msdb=to("B", "//B", "gw1.corp")),
    )
    assert found(whole, "SSB020").scripts == ()


def test_consequence_of_a_stale_broker_id_has_no_remedy_of_its_own(tmp_path: Path) -> None:
    """Both remedies together would leave two equal routes."""
    target = host("B", service="//B", routes=TO_A, broker_id=ONE)
    whole = loaded(
        tmp_path,
        A=host("A", service="//A", routes=to("B", "//B", "b.corp", more=f", BROKER_INSTANCE = '{ONE}'")),
        B=f"{target}\nGO\nALTER DATABASE B SET NEW_BROKER",
    )
    cause, consequence = lint(whole, at=NOW).at_least("error")
    assert (cause.code, consequence.code) == ("SSB014", "SSB017")
    assert consequence.scripts == ()
    assert 'route "B" (SSB014)' in consequence.remedy
    assert cause.scripts
    assert not lint(after(tmp_path, cause), at=NOW).at_least("error")


DYNAMIC = "CREATE ROUTE Dynamic WITH SERVICE_NAME = 'SQL/ServiceBroker/BrokerConfiguration', ADDRESS = 'LOCAL'\n"


def test_new_routes_for_services_with_the_same_ending_have_different_names(tmp_path: Path) -> None:
    services = (
        "CREATE SERVICE [//a/Target] ON QUEUE Q ([DEFAULT])\nCREATE SERVICE [//b/Target] ON QUEUE Q ([DEFAULT])\n"
    )
    whole = loaded(tmp_path, A=host("A", service="//A", routes=services + DYNAMIC))
    finding = found(whole, "SSB015")
    assert names_in(finding.scripts) == {"A", "Target", "Target 2"}
    assert not [each for each in lint(after(tmp_path, finding), at=NOW) if each.code == "SSB015"]


@pytest.mark.parametrize(("check", "database"), [(check_own_services, "A"), (check_listening_msdb, "msdb")])
def test_all_routes_of_a_candidate_have_different_names(
    check: Callable[[CheckContext], Iterator[Problem]], database: str, tmp_path: Path
) -> None:
    services = (
        "CREATE SERVICE [//a/Target] ON QUEUE Q ([DEFAULT])\nCREATE SERVICE [//b/Target] ON QUEUE Q ([DEFAULT])\n"
    )
    dropped = f"GO\nUSE {database}\nDROP ROUTE AutoCreatedLocal"
    whole = loaded(tmp_path, A=host("A", service="//A", routes=services, after=dropped))
    (problem,) = check(CheckContext(fleet=whole, now=NOW, until=NOW))
    *_, per_service = problem.candidates
    assert names_in(per_service) == {"A", "Target", "Target 2"}


def test_new_routes_of_a_forwarder_have_different_names(tmp_path: Path) -> None:
    whole = loaded(
        tmp_path,
        A=host("A", service="//a/Source", routes=to("B", "//B", "gw.corp")),
        C=host("C", service="//c/Source", routes=to("B", "//B", "gw.corp")),
        GW=host("GW", msdb=TO_B),
        B=host("B", service="//B"),
    )
    scripts = found(whole, "SSB017").scripts
    for instance in ("B", "GW"):
        assert names_in([each for each in scripts if each[0] == instance]) == {"Source", "Source 2"}
