"""`ssbroker trace`: one conversation from instance to instance, and its acknowledgement back."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from ssbroker.cli.fleets import AtOption, CatalogsArgument, FleetOption, load_fleet, place
from ssbroker.cli.options import PendingRequestOption, parse_now

EXAMPLES = """[bold]Examples[/bold]

Where does a conversation that begins in Sales of NORTH end?

  ssbroker trace --fleet instances/ --from NORTH/Sales --to-service //Stock

Two instances by their scripts; the copy with a broker id:

  ssbroker trace NORTH.sql SOUTH.sql --from NORTH/Sales --to-service //Stock --broker-instance D8D4D268-02A3-4C62-8F91-634B89C1E314
"""


def trace(
    *,
    catalogs: CatalogsArgument,
    to_service: Annotated[str, typer.Option(metavar="NAME", help="The service that the conversation is for.")],
    begun_in: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="INSTANCE/DATABASE",
            help="Where the conversation begins; what there is one of may be left out.",
        ),
    ] = None,
    from_service: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The service that begins it. The database's first by name if left out."),
    ] = None,
    broker_instance: Annotated[
        str | None, typer.Option(metavar="GUID", help="The broker id that the conversation names.")
    ] = None,
    conversation_id: Annotated[
        str | None, typer.Option(metavar="GUID", help="The conversation; picks among equal routes.")
    ] = None,
    fleet: FleetOption = False,
    at: AtOption = None,
    pending_request: PendingRequestOption = "continue",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Follow a conversation hop by hop to delivery, delay, drop or loop, and the acknowledgement back."""
    from ssbroker.diagnose import trace as follow  # noqa: PLC0415 - the help comes quicker without

    now = parse_now(at, option="--at")
    instances = load_fleet(catalogs, is_fleet=fleet, now=now)
    instance, database = place(begun_in, instances)
    found = follow(
        instances,
        to_service,
        instance=instance,
        database=database,
        from_service_name=from_service,
        to_broker_instance=broker_instance,
        conversation_id=conversation_id,
        at=now,
        pending_request=pending_request,
    )
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=2, ensure_ascii=False))
        return
    console = Console()
    if not console.is_terminal:
        typer.echo(str(found))
        return
    coloured = Text(str(found))
    coloured.highlight_regex(r"(?m)^  => DELIVERED.*$", "green")
    coloured.highlight_regex(r"(?m)^  => (?:DELAYED|ELSEWHERE).*$", "yellow")
    coloured.highlight_regex(r"(?m)^  => (?:DROPPED|LOOP).*$|^It does not come back.*$", "red")
    console.print(coloured, soft_wrap=True)
