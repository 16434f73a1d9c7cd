"""Fleets of scripts as a database administrator writes them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ssbroker.diagnose import Finding, Fleet, lint
from tests.worlds.universe import NOW


def host(
    name: str,
    *,
    service: str | None = None,
    routes: str = "",
    msdb: str = "",
    addresses: str = "",
    broker_id: str | None = None,
    after: str = "",
) -> str:
    """Returns the script of an instance, with a database `name` that has a service, and forwarding."""
    comment = "" if broker_id is None else f" -- ssbroker: service_broker_guid={broker_id}"
    database = f"CREATE DATABASE {name}{comment}\nGO\nUSE {name}\nCREATE QUEUE Q\n"
    lines = [
        f"-- ssbroker: addresses={addresses or f'TCP://{name.lower()}.corp:4022'}",
        "CREATE ENDPOINT E STATE = STARTED AS TCP (LISTENER_PORT = 4022) FOR SERVICE_BROKER (MESSAGE_FORWARDING = ENABLED)",
        "" if service is None else f"{database}CREATE SERVICE [{service}] ON QUEUE Q ([DEFAULT])\n{routes}",
        f"GO\nUSE msdb\n{msdb}\n{after}",
    ]
    return "\n".join(lines)


def to(name: str, service: str, address: str, *, more: str = "") -> str:
    """Returns the statement that creates a route."""
    return f"CREATE ROUTE {name} WITH SERVICE_NAME = '{service}', ADDRESS = 'TCP://{address}:4022'{more}\n"


def loaded(folder: Path, **scripts: str) -> Fleet:
    """Returns a fleet of scripts."""
    for name, script in scripts.items():
        (folder / f"{name}.sql").write_text(script, encoding="utf-8")
    return Fleet.load(folder, now=NOW)


def found(fleet: Fleet, code: str) -> Finding:
    """Returns the only finding with a code."""
    (finding,) = (each for each in lint(fleet, at=NOW) if each.code == code)
    return finding


def after(folder: Path, finding: Finding) -> Fleet:
    """Returns the fleet of the scripts in a folder, after the scripts of a finding have been executed."""
    assert finding.scripts
    for instance, script in finding.scripts:
        file = folder / f"{instance}.sql"
        file.write_text(f"{file.read_text(encoding='utf-8')}\nGO\n{script}\n", encoding="utf-8")
    return Fleet.load(folder, now=NOW)


def names_in(scripts: Sequence[tuple[str, str]]) -> set[str]:
    """Returns the names of the routes that scripts create, change or drop."""
    return {name for _, script in scripts for name in re.findall(r"ROUTE \[((?:[^\]]|\]\])+)\]", script)}
