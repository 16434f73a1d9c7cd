"""In random instances, following any advice of an explanation gets the conversation routed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest

from ssbroker import Catalog, Explanation, Router
from ssbroker._text import restore_spaces
from ssbroker.advice import advice
from tests.worlds.universe import NOW

SCRIPTS = 40
CONVERSATIONS = 6
IDS = [str(UUID(int=number * 0x11111111111111111111111111111111)) for number in (1, 2, 3, 4)]
NAMES = ("//Orders", "//orders", "//Orders ", "//Ordes", "far.example:4022/S", "me:4022/S")
ADDRESSES = ("LOCAL", "LOCAL", "TCP://me:4022", "TCP://a", "TCP://b", "tcp://A/", "TRANSPORT")
PLACEHOLDERS = {
    "<name>": "[Advised]",
    "<host>": "far",
    "<endpoint>": "[Broker]",
    "<seconds>": "600",
    "<queue>": "Advised",
    " (<contract>)": "",
}
ROUTED = ("LOCAL", "REMOTE", "FORWARD")


@dataclass(frozen=True)
class Script:
    """A random instance as a script, and its databases and services."""

    text: str
    enabled: list[str]
    databases: list[str]
    services: set[str]


def random_script(random: Random) -> Script:
    forwarding = random.choice(("ENABLED", "DISABLED"))
    endpoint = f"AS TCP (LISTENER_PORT = 4022) FOR SERVICE_BROKER (MESSAGE_FORWARDING = {forwarding})"
    lines = [f"CREATE ENDPOINT Broker STATE = STARTED {endpoint} -- ssbroker: addresses_only=TCP://me:4022"]
    ids = {database: random.choice(IDS[:3]) for database in ("A", "B", "C")[: random.randint(1, 3)]}
    enabled: list[str] = []
    # Disabled databases come first: a database cannot be created with an id that is already enabled (I7).
    for database, own in ids.items():
        if random.random() < 0.7 and own not in (ids[other] for other in enabled):
            enabled.append(database)
    for database in sorted(ids, key=enabled.__contains__):
        lines.append(f"CREATE DATABASE {database} -- ssbroker: service_broker_guid={ids[database]}")
        lines += [] if database in enabled else [f"ALTER DATABASE {database} SET DISABLE_BROKER"]
    services: set[str] = set()
    for database in (*ids, "msdb"):
        lines += ["GO", f"USE {database}", "DROP ROUTE AutoCreatedLocal", "CREATE QUEUE Advised"]
        hosted = [name for name in NAMES if database != "msdb" and random.random() < 0.2]
        services.update(hosted)
        lines += [f"CREATE SERVICE [{name}] ON QUEUE Advised" for name in hosted]
        lines += [f"CREATE ROUTE R{number} WITH {route(random)}" for number in range(random.randint(0, 4))]
    return Script("\n".join(lines), enabled, list(ids), services)


def route(random: Random) -> str:
    address = random.choice(ADDRESSES)
    name = None if address == "TRANSPORT" or random.random() < 0.35 else random.choice(NAMES)
    clauses = [f"ADDRESS = '{address}'"]
    if name is not None:
        clauses.append(f"SERVICE_NAME = '{name}'")
        if random.random() < 0.5:
            clauses.append(f"BROKER_INSTANCE = '{random.choice(IDS)}'")
            mirrored = address.lower().startswith("tcp") and random.random() < 0.4
            clauses += ["MIRROR_ADDRESS = 'TCP://mirror'"] if mirrored else []
    expired = " -- ssbroker: lifetime=2026-11-01T00:00:00Z" if random.random() < 0.3 else ""
    return ", ".join(clauses) + expired


def explained(script: str, file: Path, service: str, arguments: dict[str, Any]) -> Explanation:
    file.write_text(script, encoding="utf-8")
    return Router(Catalog.load(file, now=NOW)).explain(service, now=NOW, **arguments)


@pytest.mark.rule("R34")
@pytest.mark.parametrize("chunk", range(4))
def test_following_the_advice_gets_conversations_routed(chunk: int, tmp_path: Path) -> None:
    """For a disabled sender, the advice only has to enable it (R34)."""
    count = 0
    for seed in range(chunk * SCRIPTS, (chunk + 1) * SCRIPTS):
        random = Random(seed)
        script = random_script(random)
        for _ in range(CONVERSATIONS):
            arguments = {
                "database": random.choice((None, *script.databases)),
                "is_initiator": random.random() < 0.7,
                "to_broker_instance": random.choice((None, None, *IDS)),
                "conversation_id": UUID(int=random.getrandbits(128)),
            }
            service = random.choice(NAMES)
            before = explained(script.text, tmp_path / "net.sql", service, arguments)
            for each in advice(before.details):
                command = restore_spaces(each.command or "")
                to_local = "ADDRESS = N'LOCAL'" in command
                # Skip advice for services of this instance that it does not have, and commands without a suitable database.
                if not command or (to_local and service not in script.services) or not script.enabled:
                    continue
                after = follow(script, command, tmp_path / "net.sql", service, arguments)
                count += 1
                decision, message = after.decision, f"{seed}: {command}\n{before}\n{after}"
                if before.decision["reason"] == "sender_disabled":
                    assert decision["reason"] != "sender_disabled", message
                else:
                    assert decision["outcome"] in ROUTED or decision["reason"] == "route_requested", message
    assert count > SCRIPTS


def follow(script: Script, command: str, file: Path, service: str, arguments: dict[str, Any]) -> Explanation:
    restart = re.search(r"BEGIN DIALOG .* N'(.*)'", command)
    if restart is not None:
        return explained(script.text, file, restart[1], arguments)
    for placeholder, value in {**PLACEHOLDERS, "<database>": (*script.enabled, "")[0]}.items():
        command = command.replace(placeholder, value)
    return explained(f"{script.text}\nGO\n{command}\n", file, service, arguments)
