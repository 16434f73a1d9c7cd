"""Findings as SARIF 2.1.0, which tools show beside the code."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, Final

from ssbroker.diagnose.codes import CODES
from ssbroker.diagnose.findings import Finding, Findings

_LEVELS: Final = {"error": "error", "warning": "warning", "info": "note"}


def sarif(findings: Findings, *, uris: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The findings as one SARIF log.

    Args:
        findings: What was found.
        uris: The file or folder of each instance, relative to the repository.

    Returns:
        The log, as JSON has it.

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
    places = {code: number for number, code in enumerate(CODES)}
    driver = {"name": "ssbroker", "version": version("ssbroker"), "rules": rules}
    return {
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver},
                "columnKind": "unicodeCodePoints",
                "results": [_result(finding, places, uris or {}) for finding in findings],
            }
        ],
    }


def _result(finding: Finding, places: dict[str, int], uris: Mapping[str, str]) -> dict[str, Any]:
    location: dict[str, Any] = {"logicalLocations": [{"fullyQualifiedName": finding.where}]}
    uri = uris.get(finding.instance or "")
    if uri is not None:
        location["physicalLocation"] = {"artifactLocation": {"uri": uri}}
    return {
        "ruleId": finding.code,
        "ruleIndex": places[finding.code],
        "level": _LEVELS[finding.severity],
        "message": {"text": f"{finding.where}: {finding.message}. {finding.remedy}"},
        "locations": [location],
        "partialFingerprints": {"object/v1": f"{finding.code}/{finding.where}/{finding.route_id}"},
    }
