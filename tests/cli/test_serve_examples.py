"""The files of `examples/serve` agree with the command."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from ssbroker.broker.configuration_service import FileDirectory
from ssbroker.broker.network.limits import EndpointLimits
from ssbroker.cli.serve_config import LIMITS, ServeSettings
from ssbroker.protocol.settings import ProtocolSettings
from tests.cli.conftest import Run
from tests.guards.repository import ROOT

FOLDER = ROOT / "examples" / "serve"


def commands() -> list[list[str]]:
    """Returns the calls of `ssbroker` in the systemd unit and in the image."""
    unit = (FOLDER / "ssbroker@.service").read_text(encoding="utf-8")
    image = (FOLDER / "Containerfile").read_text(encoding="utf-8")
    called = re.search(r"^ExecStart=/usr/bin/env --ignore-signal=HUP \S*/ssbroker (.*)$", unit, re.MULTILINE)
    default = re.search(r"^CMD \[(.*)\]$", image, re.MULTILINE)
    assert called
    assert default
    return [shlex.split(called[1]), [part.strip().strip('"') for part in default[1].split(",")]]


def _default(name: str) -> object:
    return getattr(EndpointLimits() if hasattr(EndpointLimits, name) else ProtocolSettings(), name)


def test_example_settings_are_valid() -> None:
    settings = ServeSettings.read(FOLDER / "serve.toml")
    assert settings.tls.certificate == FOLDER / "shop.pem"
    assert {**settings.limits} == {name: _default(name) for name in LIMITS}
    assert settings.configuration is not None
    assert settings.configuration.directory is not None
    (entry,) = FileDirectory(settings.configuration.directory).find("//shop.example.com/Stock")
    assert (entry.address, entry.lifetime) == ("TCP://stock.example.com:4022", 600)


@pytest.mark.parametrize("command", commands())
def test_systemd_unit_and_image_call_the_command_correctly(command: list[str], tmp_path: Path, run: Run) -> None:
    """With a valid settings file, only the instance is missing."""
    (tmp_path / "serve.toml").write_text('allow_unencrypted = true\nlisten = "127.0.0.1:0"')
    here = [
        str(tmp_path / "serve.toml") if part.endswith("serve.toml") else str(tmp_path / "none") if "/" in part else part
        for part in command
    ]
    result = run(*here)
    assert result.status == 1
    assert "none" in result.err


def test_systemd_unit_retries_unless_the_settings_are_wrong(tmp_path: Path, run: Run) -> None:
    unit = (FOLDER / "ssbroker@.service").read_text(encoding="utf-8")
    (never,) = re.findall(r"^RestartPreventExitStatus=(\d+)$", unit, re.MULTILINE)
    wrong = run("serve", tmp_path, "--allow-unencrypted", "--log", "xml")
    may_pass = run("serve", tmp_path / "none", "--allow-unencrypted")
    assert (wrong.status == int(never), may_pass.status == int(never)) == (True, False)


def test_health_check_of_the_image_uses_the_configured_port() -> None:
    http = ServeSettings.read(FOLDER / "serve.toml").http
    assert http is not None
    assert f":{http.port}/health" in (FOLDER / "Containerfile").read_text(encoding="utf-8")
