"""`ssbroker explain`: the whole way of one conversation, told."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from ssbroker.catalog.catalog import Catalog
from ssbroker.cli.options import CatalogOption, NowOption, PendingRequestOption, TieBreakOption, parse_now
from ssbroker.exceptions import OptionError
from ssbroker.router import Router

EXAMPLES = """[bold]Examples[/bold]

Where does a conversation for //Orders go?

  ssbroker explain --catalog net.sql --to-service //Orders

Where it begins has to be said if there are several databases:

  ssbroker explain --catalog net.sql --to-service //Orders --database Sales

A reply that arrives from another instance:

  ssbroker explain --catalog net/ --to-service //Me --from-outside --from-target
"""


def explain(
    *,
    catalog: CatalogOption,
    to_service: Annotated[str, typer.Option(metavar="NAME", help="The service that the conversation is for.")],
    broker_instance: Annotated[
        str | None, typer.Option(metavar="GUID", help="The broker id that the conversation names.")
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Where the conversation began. The one user database if left out."),
    ] = None,
    from_outside: Annotated[
        bool, typer.Option("--from-outside", help="The conversation arrived from another instance.")
    ] = False,
    from_target: Annotated[
        bool, typer.Option("--from-target", help="The message comes from the target, not from the initiator.")
    ] = False,
    conversation_id: Annotated[
        str | None, typer.Option(metavar="GUID", help="The conversation; picks among equal routes.")
    ] = None,
    now: NowOption = None,
    tie_break: TieBreakOption = "hash",
    pending_request: PendingRequestOption = "continue",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Explain where one conversation goes: the table read, each step with the routes it saw, the choice, the decision."""
    if from_outside and database is not None:
        raise OptionError(
            "--database and --from-outside exclude each other: the conversation begins in one of this instance's or outside"
        )
    moment = parse_now(now)
    loaded = Catalog.load(catalog, now=moment)
    explanation = Router(loaded, tie_break=tie_break, pending_request=pending_request).explain(
        to_service,
        to_broker_instance=broker_instance,
        database=None if from_outside else _database(loaded, database),
        is_initiator=not from_target,
        conversation_id=conversation_id,
        now=moment,
    )
    if as_json:
        typer.echo(json.dumps(explanation.to_dict(), indent=2, ensure_ascii=False))
        return
    console = Console()
    if console.is_terminal:
        console.print(_coloured(str(explanation)), soft_wrap=True)
    else:
        typer.echo(str(explanation))


def _database(catalog: Catalog, name: str | None) -> str:
    if name is not None:
        return name
    if catalog.user_database is not None:
        return catalog.user_database
    names = sorted(str(found) for found in catalog.databases["name"].to_pylist() if found != "msdb")
    have = f"the catalog has the databases {', '.join(names)}" if names else "the catalog has no database but msdb"
    raise OptionError(f"where does the conversation begin? Give --database or --from-outside; {have}")


def _coloured(text: str) -> Text:
    coloured = Text(text)
    coloured.highlight_regex(r"(?m)^Decision:.*$", "bold")
    coloured.highlight_regex(r"\b(?:LOCAL|REMOTE|FORWARD)\b", "green")
    coloured.highlight_regex(r"\bDELAYED\b", "yellow")
    coloured.highlight_regex(r"\bDROPPED\b", "red")
    coloured.highlight_regex(r"(?i)tcp://[^\s,;\"']+", "cyan")
    return coloured
