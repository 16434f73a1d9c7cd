"""`ssbroker lint`: finds problems in routing tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias
from urllib.parse import quote

import typer
from rich.console import Console

from ssbroker import ddl
from ssbroker.catalog.catalog import Catalog, check_not_loaded, load_instances
from ssbroker.catalog.details import ConversationCount
from ssbroker.catalog.instance_folder import is_instance_folder
from ssbroker.cli.diagnose_options import (
    AddressOption,
    CatalogsArgument,
    FleetOption,
    HtmlOption,
    check_instances,
    instance_paths,
    parse_instance_addresses,
    with_addresses,
    write_text,
)
from ssbroker.cli.options import (
    AtOption,
    EncodingOption,
    LenientLintOption,
    VariableOption,
    VerboseOption,
    as_options,
    parse_script_options,
    parse_time,
    warn_about,
)
from ssbroker.cli.output_paths import check_writable, refuse_overwriting
from ssbroker.cli.terminal import print_prose
from ssbroker.exceptions import DuplicateError

if TYPE_CHECKING:
    from ssbroker.diagnose import Finding, Findings, Fleet


EXAMPLES = """Examples:

Check one instance:

  ssbroker lint net.sql

Check a folder of instances, including informational findings:

  ssbroker lint --fleet instances/ --level info

Write the findings for code review tools:

  ssbroker lint --fleet instances/ --ignore SSB006 --sarif findings.sarif
"""
Level: TypeAlias = Literal["error", "warning", "info"]


def lint(
    *,
    catalogs: CatalogsArgument,
    fleet: FleetOption = False,
    address: AddressOption = None,
    at: AtOption = None,
    expires_within: Annotated[
        int,
        typer.Option(
            metavar="DAYS", min=0, max=timedelta.max.days, help="Report routes that expire within this number of days."
        ),
    ] = 30,
    level: Annotated[
        Level, typer.Option(metavar="LEVEL", help="Minimum severity to report: error, warning or info.")
    ] = "warning",
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="CODE", help="Code of findings to omit. Can be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as a JSON object.")] = False,
    sarif_file: Annotated[
        Path | None, typer.Option("--sarif", metavar="FILE", help="Also write the findings as SARIF 2.1.0.")
    ] = None,
    html: HtmlOption = None,
    variable: VariableOption = None,
    encoding: EncodingOption = None,
    lenient: LenientLintOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Find problems in the routing tables, databases and services of one or more instances, and in the scripts that describe them.

    A script with :connect describes an instance for each server. Reading continues after an error in a script.

    Exit status: 0 if no findings are reported, 1 if any are, 2 after an error.
    """
    from ssbroker.diagnose import Findings, html_report, sarif  # noqa: PLC0415 - keeps --help fast
    from ssbroker.diagnose import lint as find_problems  # noqa: PLC0415 - the same
    from ssbroker.diagnose.lint import other_unchecked, unchecked_routes  # noqa: PLC0415 - the same

    current_time = datetime.now(UTC)
    now = parse_time(at, option="--at", default=current_time)
    paths = instance_paths(catalogs, is_fleet=fleet)
    outputs = [path for path in (sarif_file, html) if path is not None]
    refuse_overwriting(outputs, inputs=[], catalogs=[*paths.values()])
    check_writable(outputs)
    options = parse_script_options(variable, encoding, lenient=lenient, collects=True)
    addresses = parse_instance_addresses(address)
    instances, uris, duplicate_id_findings, unread = _load_instances(
        paths, now=current_time, options=options, addresses=addresses
    )
    notes = [note for catalog in instances.values() for note in catalog.notes if not note.is_problem]
    warn_about(notes, about="routing", verbose=verbose)
    with as_options(ignore="--ignore", expires_within="--expires-within"):
        fleet_findings = find_problems(
            instances, at=now, expires_within=timedelta(days=expires_within), ignore=ignore or ()
        )
    found = Findings([*fleet_findings, *duplicate_id_findings]).without(ignore or ()).at_least(level)
    if sarif_file is not None:
        log = sarif(found, uris=uris)
        write_text(sarif_file, json.dumps(log, indent=2, ensure_ascii=False) + "\n")
    if html is not None:
        write_text(html, html_report(instances, findings=found, at=now))
    routes = unchecked_routes(instances)
    unchecked = [*other_unchecked(instances), *(f"the database {name}, whose file cannot be used" for name in unread)]
    if as_json:
        findings = [finding.to_dict() for finding in found]
        report = {
            "counts": found.counts,
            "skipped_statements": ddl.counts(notes),
            "findings": findings,
            "not_checked": unchecked if routes is None else [routes, *unchecked],
        }
        typer.echo(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        print_findings(found, Console(), folders=[*paths.values()], routes=routes, unchecked=unchecked)
    if found:
        raise typer.Exit(1)


def _uri(path: Path) -> str:
    """Returns a relative URI for a relative path, so that tools resolve it in the repository."""
    return path.as_uri() if path.is_absolute() else quote(path.as_posix())


def _load_instances(
    paths: Mapping[str, Path], *, now: datetime, options: ddl.ScriptOptions, addresses: Mapping[str, Sequence[str]]
) -> tuple[Fleet, dict[str, str], list[Finding], list[str]]:
    """Returns the instances with valid catalogs, the URI of each, findings for instances in which a broker id is enabled twice, and unusable databases.

    A LIFETIME in a script counts from `now`.
    """
    from ssbroker.diagnose import Fleet  # noqa: PLC0415 - keeps --help fast
    from ssbroker.diagnose.database_checks import duplicate_enabled_id  # noqa: PLC0415 - the same

    usable: dict[str, Catalog] = {}
    uris: dict[str, str] = {}
    duplicate_id_findings: list[Finding] = []
    unread: list[str] = []
    for name, path in paths.items():
        try:
            loaded = load_instances(path, name=name, now=now, options=options)
        except DuplicateError as error:
            finding = duplicate_enabled_id(error, instance=name)
            if finding is None:
                raise
            duplicate_id_findings.append(finding)
            loaded = {}
        uris[name] = _uri(path)
        for instance, catalog in loaded.items():
            check_not_loaded(instance, usable, path)
            usable[instance], unavailable = _with_conversations(catalog, path)
            unread += (f"{instance}/{database}" for database in unavailable)
            uris[instance] = _uri(path)
    if not duplicate_id_findings:
        check_instances(addresses, usable)
    return Fleet(with_addresses(usable, addresses)), uris, duplicate_id_findings, unread


def _with_conversations(catalog: Catalog, path: Path) -> tuple[Catalog, list[str]]:
    """Adds the number of conversations by state if the catalog comes from an instance folder; also returns the unusable databases."""
    if not is_instance_folder(path):
        return catalog, []
    from ssbroker.broker.instance import Instance  # noqa: PLC0415 - only for instance folders
    from ssbroker.broker.overview import overview_of  # noqa: PLC0415 - the same

    with Instance.open(path, background=False) as instance:
        rows, unavailable = overview_of(instance)["conversations"], [*instance.unavailable_databases]
    counts = tuple(
        ConversationCount(
            database=row["database"], state=row["state_desc"], count=row["count"], oldest_seconds=row["oldest_seconds"]
        )
        for row in rows
    )
    return catalog.with_details(replace(catalog.details, conversations=counts)), unavailable


def _position(finding: Finding, folders: Sequence[Path]) -> str:
    """Returns the file, relative to the instance folder, and the line of the statement that created the object of a finding."""
    if finding.line is None or finding.subject.kind == "statement":
        return ""
    file = Path(finding.file or "")
    shown = next((file.relative_to(folder) for folder in folders if folder in file.parents), file.name)
    return f" ({shown}:{finding.line})"


_SHOWN_FINDINGS_MAX: Final = 10
_COLOURS: Final = {"error": "red", "warning": "yellow", "info": "cyan"}


def print_findings(
    found: Findings, console: Console, *, folders: Sequence[Path], routes: str | None, unchecked: Sequence[str]
) -> None:
    """Prints the findings grouped by code, the most severe first, and the checks that were not made. `routes` describes the unchecked routes."""
    from ssbroker.diagnose.findings import CODES, by_remedy, severity_count  # noqa: PLC0415 - keeps --help fast

    def line(text: str, style: str = "") -> None:
        print_prose(console, text, style)

    printed: dict[tuple[tuple[str, str], ...], str] = {}
    for (code, severity), group in groupby(found, key=lambda finding: (finding.code, finding.severity)):
        findings = list(group)
        line(f"{code} {severity}: {CODES[code].title}", _COLOURS[severity])
        line(f"  {CODES[code].why}")
        for same in by_remedy(findings[:_SHOWN_FINDINGS_MAX]):
            for finding in same:
                line(f"  - {finding.where}{_position(finding, folders)}: {finding.message}")
            first = same[0]
            earlier = printed.get(first.scripts)
            if first.scripts:
                printed.setdefault(first.scripts, code)
            remedy = first.remedy if earlier in (None, code) else f"The same statements as for {earlier} above."
            line(f"    {'' if len(same) == 1 else f'For these {len(same)}: '}{remedy}", "dim")
        if len(findings) > _SHOWN_FINDINGS_MAX:
            line(f"  - and {len(findings) - _SHOWN_FINDINGS_MAX:,} more; --json lists all")
        line("")
    counts = ", ".join(severity_count(severity, number) for severity, number in found.counts.items() if number)
    line(counts or "No problems found.")
    if routes is not None:
        line(f"Not checked: {routes}.", "yellow")
    if unchecked:
        line(f"Not checked, because the catalogs lack the information: {'; '.join(unchecked)}.")
