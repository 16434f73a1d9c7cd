"""Remedies of deployments as database administrators have them: they repair what the finding is about, and nothing else."""

from __future__ import annotations

from pathlib import Path

from ssbroker.diagnose import lint, trace
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
    for finding in lint(whole, at=NOW):
        assert names_in(finding.scripts) <= {finding.object.removeprefix("route ").strip('"')}


def test_route_is_not_dropped_because_an_unknown_gateway_takes_everything(tmp_path: Path) -> None:
    local = "CREATE ROUTE LocalOne WITH SERVICE_NAME = '//Local', ADDRESS = 'LOCAL'\n"
    gateway = "CREATE ROUTE Any WITH ADDRESS = 'TCP://gw:4022'\n"
    whole = loaded(tmp_path, A=host("A", service="//A", routes=local + gateway))
    assert found(whole, "SSB008").scripts == ()
