"""Committed text says nothing about the machine that it was written on, and points only where a reader may go."""

from __future__ import annotations

import getpass
import re
import socket
from pathlib import Path

import pytest

from tests.guards.repository import ROOT, committed_files, name_of

# Hosts that a committed file may name. example.com and its kin are reserved for documentation.
HOSTS = {
    "schemas.microsoft.com": "Service Broker's own message type names",
    "keepachangelog.com": "the form of CHANGELOG.md",
    "www.w3.org": "the namespace of SVG",
    "semver.org": "what its version numbers mean",
    "github.com": "the repository's address, and the registry in Cargo.lock",
}
ALLOWED_HOST = re.compile(r"(?:^|\.)(?:example(?:\.(?:com|org|net))?|test|invalid|localhost)$")
HOME = re.compile(r"(?<![\w.$}])/(?:home|root|Users|tmp)/[\w.]+")

TEXTS = [path for path in committed_files() if path.suffix not in {".parquet", ".arrow", ".lock", ".png"}]


@pytest.mark.parametrize("path", TEXTS, ids=name_of)
def test_a_file_names_no_place_on_a_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert HOME.findall(text) == []
    machine = [
        str(ROOT),
        str(Path.home()),
        socket.gethostname(),
        *([user] if (user := getpass.getuser()) != "root" else []),
    ]
    assert [word for word in machine if len(word) > len("/app") and word in text] == []


@pytest.mark.parametrize("path", TEXTS, ids=name_of)
def test_a_file_names_only_hosts_with_a_reason(path: Path) -> None:
    hosts = {host.lower() for host in re.findall(r"\bhttps?://([\w.-]+)", path.read_text(encoding="utf-8"))}
    assert {host for host in hosts if "." in host and host not in HOSTS and not ALLOWED_HOST.search(host)} == set()


@pytest.mark.parametrize("path", [path for path in TEXTS if name_of(path) != "LICENSE"], ids=name_of)
def test_a_text_ends_with_one_line_break_and_has_no_trailing_blanks(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text == "" or (text.endswith("\n") and not text.endswith("\n\n"))
    assert [number for number, line in enumerate(text.splitlines(), start=1) if line != line.rstrip()] == []
