"""Finds the statement that created the object of each finding."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ssbroker.diagnose.check_context import CheckContext, quoted_name
from ssbroker.diagnose.findings import Finding
from ssbroker.diagnose.fleet import Fleet


class StatementLocator:
    """Adds file and line to findings, if the catalogs were loaded from scripts."""

    def __init__(self, fleet: Fleet, context: CheckContext) -> None:
        self._fleet: Final = fleet
        self._context: Final = context
        self._services: Final = {
            quoted_name(service): service
            for tables in context.tables.values()
            for names in tables.services.values()
            for service in names
        }

    def located(self, finding: Finding) -> Finding:
        """Returns the finding with the statement that made its object, or else its database."""
        if finding.line is not None or finding.instance is None or finding.instance not in self._fleet:
            return finding
        catalog, database = self._fleet[finding.instance], finding.database or ""
        if catalog.script is None:
            return finding
        kind, _, quoted = finding.object.partition(" ")
        position = None
        if finding.route_id is not None:
            name = next(
                route.name
                for route in self._context.tables[finding.instance].routes
                if route.key == (finding.database, finding.route_id)
            )
            position = catalog.position("route", database=database, name=name)
        elif kind == "service" and quoted in self._services:
            position = catalog.position("service", database=database, name=self._services[quoted])
        elif kind == "queue":
            position = catalog.position("queue", database=database, name=quoted.strip('"'))
        elif kind == "endpoint":
            position = catalog.position("endpoint", name=quoted.strip('"'))
        if position is None and database:
            position = catalog.position("database", database=database)
        if position is None:
            return finding
        return replace(finding, file=position.file, line=position.line)
