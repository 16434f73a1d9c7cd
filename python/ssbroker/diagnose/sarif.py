"""Findings as a SARIF log."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import PurePath
from typing import Any, Final
from urllib.parse import quote, unquote

from ssbroker.diagnose.findings import CODES, Finding, Findings

SCHEMA: Final = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS: Final = {"error": "error", "warning": "warning", "info": "note"}


def sarif(findings: Findings, *, uris: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Returns the findings as a SARIF log, for code review tools.

    Args:
        findings: The findings.
        uris: The URI of each instance's file or folder, relative to the repository. A finding that concerns several instances is
            located at each of them.

    Returns:
        The log, ready for `json.dump`.

    Examples:
        >>> from ssbroker.diagnose import Findings, sarif
        >>> sarif(Findings([]))["version"]
        '2.1.0'
    """
    rules = [
        {
            "id": code.code,
            "name": "".join(word.capitalize() for word in code.name.split("-")),
            "shortDescription": {"text": code.title},
            "fullDescription": {"text": code.why},
            "defaultConfiguration": {"level": _LEVELS[code.severity]},
        }
        for code in CODES.values()
    ]
    rule_indices = {code: number for number, code in enumerate(CODES)}
    driver = {"name": "ssbroker", "version": version("ssbroker"), "rules": rules}
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver},
                "columnKind": "unicodeCodePoints",
                "results": [_result(finding, rule_indices, uris or {}) for finding in findings],
            }
        ],
    }


def _result(finding: Finding, rule_indices: dict[str, int], uris: Mapping[str, str]) -> dict[str, Any]:
    logical_locations = [{"fullyQualifiedName": finding.where}]
    locations = [
        {
            "physicalLocation": {
                "artifactLocation": {"uri": uri},
                # SARIF viewers require a line, even for a finding without a statement.
                "region": {"startLine": finding.line or 1},
            },
            "logicalLocations": logical_locations,
        }
        for uri in _uris_of(finding, uris)
    ]
    return {
        "ruleId": finding.code,
        "ruleIndex": rule_indices[finding.code],
        "level": _LEVELS[finding.severity],
        "message": {"text": f"{finding.where}: {finding.message}. {finding.remedy}"},
        "locations": locations or [{"logicalLocations": logical_locations}],
        "partialFingerprints": {"object/v1": f"{finding.code}/{finding.where}/{finding.route_id}"},
    }


def _uris_of(finding: Finding, uris: Mapping[str, str]) -> list[str]:
    """Returns the URI of the script with the statement that created the object; otherwise, the URI of each instance concerned."""
    instances = [finding.instance] if finding.instance is not None else _instances_of_related(finding)
    if finding.file is not None:
        return [_uri_of_script(PurePath(finding.file), uris.get(instances[0], "") if instances else "")]
    return [uris[instance] for instance in instances if instance in uris]


def _uri_of_script(file: PurePath, instance_uri: str) -> str:
    """Returns the URI of a script of an instance; the instance is this script, or a folder that contains it, possibly in a subfolder.

    Examples:
        >>> _uri_of_script(PurePath("/srv/fleet/SOUTH/Routes/Stock.sql"), "fleet/SOUTH")
        'fleet/SOUTH/Routes/Stock.sql'
        >>> _uri_of_script(PurePath("/srv/fleet/NORTH.sql"), "fleet/NORTH.sql")
        'fleet/NORTH.sql'
        >>> _uri_of_script(PurePath("Routes/Stock.sql"), ".")
        'Routes/Stock.sql'
    """
    if not instance_uri:
        return quote(file.as_posix())
    name = quote(file.name)
    if instance_uri.rpartition("/")[2] == name:
        return instance_uri
    folder = unquote(instance_uri.removeprefix("file://")).strip("/")
    if folder == "." and not file.is_absolute():
        return quote(file.as_posix())
    _, is_below, path = f"/{file.as_posix()}".partition(f"/{folder}/")
    return f"{instance_uri.rstrip('/')}/{quote(path) if is_below else name}"


def _instances_of_related(finding: Finding) -> list[str]:
    return list(dict.fromkeys(related.partition("/")[0] for related in finding.related))
