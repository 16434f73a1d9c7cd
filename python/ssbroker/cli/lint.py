"""`ssbroker lint`: finds problems in routing tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias
from urllib.parse import quote

import typer
from rich.console import Console

from ssbroker._text import terminal_safe
from ssbroker.catalog.catalog import Catalog
from ssbroker.cli.fleets import AtOption, CatalogsArgument, FleetOption, HtmlOption, places, write_text
from ssbroker.cli.options import parse_now
from ssbroker.cli.writers import refuse_overwriting
from ssbroker.exceptions import DuplicateError

if TYPE_CHECKING:
    from ssbroker.diagnose import Finding, Findings, Fleet


EXAMPLES = """[bold]Examples[/bold]

One instance:

  ssbroker lint net.sql

Many, each in its folder or script, with what is only worth knowing:

  ssbroker lint --fleet instances/ --level info

For a pipeline, and for tools that show findings beside the code:

  ssbroker lint --fleet instances/ --ignore SSB006 --sarif findings.sarif
"""
Level: TypeAlias = Literal["error", "warning", "info"]
"""The severities of findings."""


def lint(
    *,
    catalogs: CatalogsArgument,
    fleet: FleetOption = False,
    at: AtOption = None,
    expires_within: Annotated[
        int,
        typer.Option(metavar="DAYS", min=0, max=timedelta.max.days, help="Report what expires within so many days."),
    ] = 30,
    level: Annotated[Level, typer.Option(help="Leave out what is less bad.")] = "warning",
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="CODE", help="Leave out a code. May be given several times.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    sarif_file: Annotated[
        Path | None, typer.Option("--sarif", metavar="FILE", help="Also write the findings as SARIF 2.1.0.")
    ] = None,
    html: HtmlOption = None,
) -> None:
    """Find what is wrong with the routing tables, databases and services of one instance, or of many together.

    Exit status 1 if anything is found, 0 if nothing is.
    """
    from ssbroker.diagnose import Findings, html_report, sarif  # noqa: PLC0415 - the same
    from ssbroker.diagnose import lint as find  # noqa: PLC0415 - the same

    now = parse_now(at, option="--at")
    where = places(catalogs, is_fleet=fleet)
    refuse_overwriting([path for path in (sarif_file, html) if path is not None], inputs=[], catalogs=[*where.values()])
    loaded, refused = _loaded(where, now=now)
    lasting = find(loaded, at=now, expires_within=timedelta(days=expires_within), ignore=ignore or ())
    found = Findings([*lasting, *refused]).without(ignore or ()).at_least(level)
    if sarif_file is not None:
        log = sarif(found, uris={name: _uri(place) for name, place in where.items()})
        write_text(sarif_file, json.dumps(log, indent=2, ensure_ascii=False) + "\n")
    if html is not None:
        write_text(html, html_report(loaded, findings=found, at=now))
    if as_json:
        findings = [finding.to_dict() for finding in found]
        typer.echo(json.dumps({"counts": found.counts, "findings": findings}, indent=2, ensure_ascii=False))
    else:
        print_findings(found, Console())
    if found:
        raise typer.Exit(1)


def _uri(place: Path) -> str:
    """Where an instance stands: relative as it was given, for a tool that knows the repository."""
    return place.as_uri() if place.is_absolute() else quote(place.as_posix())


def _loaded(where: Mapping[str, Path], *, now: datetime) -> tuple[Fleet, list[Finding]]:
    """The instances whose catalogs can be used, and what was found about the others."""
    from ssbroker.diagnose import Fleet  # noqa: PLC0415 - the help comes quicker without what finds
    from ssbroker.diagnose.checks import duplicate_enabled_id  # noqa: PLC0415 - the same

    usable: dict[str, Catalog] = {}
    refused: list[Finding] = []
    for name, place in where.items():
        try:
            usable[name] = Catalog.load(place, now=now)
        except DuplicateError as error:
            finding = duplicate_enabled_id(error, instance=name)
            if finding is None:
                raise
            refused.append(finding)
    return Fleet(usable), refused


_SHOWN: Final = 10
_COLOURS: Final = {"error": "red", "warning": "yellow", "info": "cyan"}


def print_findings(found: Findings, console: Console) -> None:
    """Prints each code with its findings, the worst first."""
    from ssbroker.diagnose import CODES  # noqa: PLC0415 - the help comes quicker without what finds

    def line(text: str, style: str | None = None) -> None:
        console.print(terminal_safe(text), style=style, markup=False, highlight=False, soft_wrap=True)

    for (code, severity), group in groupby(found, key=lambda finding: (finding.code, finding.severity)):
        findings = list(group)
        line(f"{code} {severity}: {CODES[code].title}", _COLOURS[severity])
        line(f"  {CODES[code].why}")
        for finding in findings[:_SHOWN]:
            line(f"  - {finding.where}: {finding.message}")
            line(f"    {finding.remedy}", "dim")
        if len(findings) > _SHOWN:
            line(f"  - and {len(findings) - _SHOWN:,} more; --json has them all")
        line("")
    counts = ", ".join(
        f"{number:,} {severity}{'' if number == 1 or severity == 'info' else 's'}"
        for severity, number in found.counts.items()
        if number
    )
    line(counts or "Nothing is found.")
