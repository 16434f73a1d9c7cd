"""`ssbroker explain`: explains the routing of one conversation."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from ssbroker._text import enable_queue_command, restore_spaces
from ssbroker.catalog.catalog import Catalog
from ssbroker.cli.diagnose_options import REPLY_WITHOUT_ID, database_names, instance_name
from ssbroker.cli.options import (
    AtOption,
    CatalogArgument,
    EncodingOption,
    FromTargetOption,
    LenientCatalogOption,
    PendingRequestOption,
    TieBreakOption,
    VariableOption,
    as_options,
    check_service_name,
    parse_time,
    parse_variables,
    suggesting_lenient,
)
from ssbroker.cli.terminal import fitted, print_prose
from ssbroker.ddl.model import find_name
from ssbroker.exceptions import OptionError
from ssbroker.explain import render
from ssbroker.router import Router

EXAMPLES = r"""Examples:

Explain a conversation with the service //Orders:

  ssbroker explain net.sql --to-service //Orders

Name the database if there are several:

  ssbroker explain net.sql --to-service //Orders --from Sales

Explain a reply that arrives from another instance:

  ssbroker explain net/ --to-service //Me --from-outside --from-target \
    --broker-instance D8D4D268-02A3-4C62-8F91-634B89C1E314
"""


def explain(
    *,
    catalog: CatalogArgument,
    to_service: Annotated[str, typer.Option(metavar="NAME", help="Service that receives the message.")],
    broker_instance: Annotated[
        str | None, typer.Option(metavar="GUID", help="Broker id that the conversation names.")
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="DATABASE",
            help="Database that sends the message, or INSTANCE/DATABASE. Default: the only user database.",
        ),
    ] = None,
    from_outside: Annotated[
        bool, typer.Option("--from-outside", help="The conversation arrives from another instance.")
    ] = False,
    from_target: FromTargetOption = False,
    conversation_id: Annotated[
        str | None,
        typer.Option(metavar="GUID", help="Conversation id, which determines the choice between equal routes."),
    ] = None,
    at: AtOption = None,
    tie_break: TieBreakOption = "hash",
    pending_request: PendingRequestOption = "continue",
    as_json: Annotated[bool, typer.Option("--json", help="Print the explanation as a JSON object.")] = False,
    variable: VariableOption = None,
    encoding: EncodingOption = None,
    lenient: LenientCatalogOption = False,
) -> None:
    """Explain the routing of one conversation.

    Shows the routing table, the routes found in each step, the choice, and the decision.
    """
    from ssbroker.diagnose.catalog_rows import EXPORT_MSDB, lacks_msdb  # noqa: PLC0415 - keeps --help fast

    check_service_name(to_service, option="--to-service")
    if from_outside and start is not None:
        raise OptionError(
            "--from and --from-outside cannot be used together: a conversation starts either in this instance or outside it"
        )
    # LIFETIME counts from the current time, regardless of the time of the decision.
    with suggesting_lenient(lenient=lenient), as_options(encoding="--encoding"):
        loaded = Catalog.load(catalog, variables=parse_variables(variable), encoding=encoding, lenient=lenient)
    with as_options(
        to_service_name="--to-service",
        to_broker_instance="--broker-instance",
        conversation_id="--conversation-id",
        database="--from",
    ):
        explanation = Router(loaded, tie_break=tie_break, pending_request=pending_request).explain(
            to_service,
            to_broker_instance=broker_instance,
            database=None if from_outside else _database(loaded, catalog, start),
            is_initiator=not from_target,
            conversation_id=conversation_id,
            now=parse_time(at, option="--at", default=datetime.now(UTC)),
        )
    database = explanation.decision["target_database"]
    service = loaded.details.services.get((database, to_service))
    queue = None if service is None else loaded.details.queues.get((database, service.queue))
    notes = []
    if service is not None and not service.accepts_conversations and not from_target:
        notes.append(
            f"The service {to_service} has no contract, so it refuses every conversation that is started with it (error -8408)."
        )
    elif queue is not None and not queue.is_enabled:
        notes.append(
            restore_spaces(
                f"The queue of the service {to_service} is disabled, so the message waits in the transmission queue of {database} "
                f"until the queue is enabled: {enable_queue_command(database, queue.schema, queue.name)}"
            )
        )
    if from_target and broker_instance is None:
        notes.append(REPLY_WITHOUT_ID)
    if from_outside and lacks_msdb(loaded):
        notes.append(
            f"The tables contain no routes of msdb, by which messages from other instances are routed: {EXPORT_MSDB}."
        )
    if as_json:
        typer.echo(json.dumps(explanation.to_dict() | {"notes": notes}, indent=2, ensure_ascii=False))
        return
    console = Console()
    if console.is_terminal:
        text = fitted(render(explanation.details, width=console.width), console.width)
        console.print(_coloured(text), soft_wrap=True)
    else:
        typer.echo(str(explanation))
    for note in notes:
        print_prose(console, note)


def _database(catalog: Catalog, path: Path, start: str | None) -> str:
    """Returns the database that `DATABASE` or `INSTANCE/DATABASE` names in any case, or the only user database."""
    known = database_names({instance_name(path): catalog})
    if start is not None:
        instance, _, database = start.partition("/")
        if not instance or not database or start in known:
            return find_name(start, known) or start
        if find_name(instance, [instance_name(path)]) is None:
            raise OptionError(
                f"--from: {path} contains the tables of the instance {instance_name(path)!r}, not those of {instance!r:.80}"
            )
        return find_name(database, known) or database
    if catalog.user_database is not None:
        return catalog.user_database
    names = sorted(found for found in known if found != "msdb")
    found = f"the databases {', '.join(names)}" if names else "no database other than msdb"
    raise OptionError(f"specify --from or --from-outside: the catalog has {found}")


def _coloured(text: str) -> Text:
    coloured = Text(text)
    coloured.highlight_regex(r"(?m)^Decision:.*$", "bold")
    coloured.highlight_regex(r"\b(?:LOCAL|REMOTE|FORWARD)\b", "green")
    coloured.highlight_regex(r"\bDELAYED\b", "yellow")
    coloured.highlight_regex(r"\bDROPPED\b", "red")
    coloured.highlight_regex(r"(?i)tcp://[^\s,;\"']+", "cyan")
    return coloured
