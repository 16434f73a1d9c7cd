"""Findings as SARIF 2.1.0, which tools show beside the code."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, Final

from ssbroker.diagnose.codes import CODES
from ssbroker.diagnose.findings import Finding, Findings

SCHEMA: Final = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS: Final = {"error": "error", "warning": "warning", "info": "note"}


def sarif(findings: Findings, *, uris: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The findings as one SARIF log.

    Args:
        findings: What was found.
        uris: The URI of each instance's file or folder, relative to the repository. What is between instances is shown at all of them.

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
    numbers = {code: number for number, code in enumerate(CODES)}
    driver = {"name": "ssbroker", "version": version("ssbroker"), "rules": rules}
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver},
                "columnKind": "unicodeCodePoints",
                "results": [_result(finding, numbers, uris or {}) for finding in findings],
            }
        ],
    }


def _result(finding: Finding, numbers: dict[str, int], uris: Mapping[str, str]) -> dict[str, Any]:
    logical = [{"fullyQualifiedName": finding.where}]
    # A finding is about a whole catalog, in which nobody can say the line; viewers want one.
    locations = [
        {
            "physicalLocation": {"artifactLocation": {"uri": uris[instance]}, "region": {"startLine": 1}},
            "logicalLocations": logical,
        }
        for instance in _instances(finding)
        if instance in uris
    ]
    return {
        "ruleId": finding.code,
        "ruleIndex": numbers[finding.code],
        "level": _LEVELS[finding.severity],
        "message": {"text": f"{finding.where}: {finding.message}. {finding.remedy}"},
        "locations": locations or [{"logicalLocations": logical}],
        "partialFingerprints": {"object/v1": f"{finding.code}/{finding.where}/{finding.route_id}"},
    }


def _instances(finding: Finding) -> list[str]:
    """Whose catalog it is in; of what is between instances, those of the objects that have part in it."""
    if finding.instance is not None:
        return [finding.instance]
    return list(dict.fromkeys(related.partition("/")[0] for related in finding.related))
