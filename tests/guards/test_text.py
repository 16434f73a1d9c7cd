"""Committed text contains nothing about the machine it was written on, and no unexpected hosts."""

from __future__ import annotations

import getpass
import re
import socket
from pathlib import Path

from tests.guards.repository import ROOT, committed_files, name_of

# Hosts that a committed file may name. example.com and similar ones are reserved for documentation.
HOSTS = {
    "schemas.microsoft.com": "Service Broker's own message type names",
    "keepachangelog.com": "the form of CHANGELOG.md",
    "www.w3.org": "the namespace of SVG",
    "docs.oasis-open.org": "the schema that a SARIF log names",
    "semver.org": "what its version numbers mean",
    "github.com": "the repository's address, and the registry in Cargo.lock",
}
ALLOWED_HOST = re.compile(r"(?:^|\.)(?:example(?:\.(?:com|org|net))?|test|invalid|localhost)$")
HOST = re.compile(r"\bhttps?://([\w.-]+)")
HOME = re.compile(r"(?<![\w.$}])/(?:home|root|Users|tmp)/[\w.]+")

# Libraries of others are kept as they are: python/ssbroker/diagnose/page/LICENSES.txt names them.
TEXTS = {
    name_of(path): path.read_text(encoding="utf-8")
    for path in committed_files()
    if path.suffix not in {".parquet", ".arrow", ".lock", ".png"} and not path.name.endswith(".min.js")
}


def test_no_file_contains_a_path_of_a_machine() -> None:
    user = getpass.getuser()
    machine = [str(ROOT), str(Path.home()), socket.gethostname(), *([user] if user != "root" else [])]
    words = [word for word in machine if len(word) > len("/app")]
    found = {name: [*HOME.findall(text), *(word for word in words if word in text)] for name, text in TEXTS.items()}
    assert {name: places for name, places in found.items() if places} == {}


def test_files_name_listed_hosts_only() -> None:
    named = {(host.lower(), name) for name, text in TEXTS.items() for host in HOST.findall(text)}
    assert {
        each for each in named if "." in each[0] and each[0] not in HOSTS and not ALLOWED_HOST.search(each[0])
    } == set()


# British spelling with -ize. Names of other libraries, of CSS and of T-SQL are American, so these words are checked in documents only.
OTHER_SPELLING = re.compile(
    r"\b\w*(?:author|recogn|normal|serial|organ|optim|synchron|minim|maxim|material|summar|random|final|initial|custom|canonical|categor"
    r"|priorit|standard|character|visual|local|memor|real|util|emphas|capital|stabil|general|special|parametr|vector)"
    r"is(?:e|es|ed|ing|ation|ations)\b"
    r"|\w*dial(?:ed|ing)\b|\b(?:canceled|canceling|labeled|labeling|modeled|signaled|traveled|judgment|acknowledgments?|analyze[ds]?)\b"
)
AMERICAN = re.compile(r"\b(?:behavior|color|favor|honor|neighbor)(?:s|ed|ing)?\b")


def test_there_is_one_spelling() -> None:
    """The services of an example may have another one."""
    found = {
        name: [
            match[0]
            for pattern in ((OTHER_SPELLING, AMERICAN) if name.endswith(".md") else (OTHER_SPELLING,))
            for match in pattern.finditer(text)
            if not match[0].startswith("Authorise")
        ]
        for name, text in TEXTS.items()
        if name != "tests/guards/test_text.py"
    }
    assert {name: words for name, words in found.items() if words} == {}
