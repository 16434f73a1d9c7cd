"""In random instances, whatever an explanation advises sets the conversation on its way when it is done to the letter."""

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
FILLED = {
    "<name>": "[Advised]",
    "<host>": "far",
    "<endpoint>": "[Broker]",
    "<seconds>": "600",
    "<queue>": "Advised",
    " (<contract>)": "",
}
ON_THE_WAY = ("LOCAL", "REMOTE", "FORWARD")


@dataclass(frozen=True)
class Script:
    """An instance as a script of what CREATE ROUTE takes, and what is known of it."""

    text: str
    enabled: list[str]
    databases: list[str]
    services: set[str]


def made(random: Random) -> Script:
    forwarding = random.choice(("ENABLED", "DISABLED"))
    endpoint = f"AS TCP (LISTENER_PORT = 4022) FOR SERVICE_BROKER (MESSAGE_FORWARDING = {forwarding})"
    lines = [f"CREATE ENDPOINT Broker STATE = STARTED {endpoint} -- ssbroker: addresses_only=TCP://me:4022"]
    ids = {database: random.choice(IDS[:3]) for database in ("A", "B", "C")[: random.randint(1, 3)]}
    enabled: list[str] = []
    # The disabled ones first: where an id is enabled already, another database cannot be made with it (I7).
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


def explained(script: str, file: Path, service: str, asked: dict[str, Any]) -> Explanation:
    file.write_text(script, encoding="utf-8")
    return Router(Catalog.load(file, now=NOW)).explain(service, now=NOW, **asked)


@pytest.mark.rule("R34")
@pytest.mark.parametrize("chunk", range(4))
def test_what_is_advised_sets_conversations_on_their_way(chunk: int, tmp_path: Path) -> None:
    """What is advised holds by all of them; a sender that is disabled is enabled first, whatever comes then (R34)."""
    followed = 0
    for seed in range(chunk * SCRIPTS, (chunk + 1) * SCRIPTS):
        random = Random(seed)
        script = made(random)
        for _ in range(CONVERSATIONS):
            asked = {
                "database": random.choice((None, *script.databases)),
                "is_initiator": random.random() < 0.7,
                "to_broker_instance": random.choice((None, None, *IDS)),
                "conversation_id": UUID(int=random.getrandbits(128)),
            }
            service = random.choice(NAMES)
            stuck = explained(script.text, tmp_path / "net.sql", service, asked)
            for each in advice(stuck.details):
                command = restore_spaces(each.command or "")
                to_local = "ADDRESS = N'LOCAL'" in command
                # "If it is in this instance", and it is not; or no database is fit to be filled in.
                if not command or (to_local and service not in script.services) or not script.enabled:
                    continue
                then = done(script, command, tmp_path / "net.sql", service, asked)
                followed += 1
                decision, told = then.decision, f"{seed}: {command}\n{stuck}\n{then}"
                if stuck.decision["reason"] == "sender_disabled":
                    assert decision["reason"] != "sender_disabled", told
                else:
                    assert decision["outcome"] in ON_THE_WAY or decision["reason"] == "route_requested", told
    assert followed > SCRIPTS


def done(script: Script, command: str, file: Path, service: str, asked: dict[str, Any]) -> Explanation:
    begun = re.search(r"BEGIN DIALOG .* N'(.*)'", command)
    if begun is not None:
        return explained(script.text, file, begun[1], asked)
    for place, value in {**FILLED, "<database>": (*script.enabled, "")[0]}.items():
        command = command.replace(place, value)
    return explained(f"{script.text}\nGO\n{command}\n", file, service, asked)
