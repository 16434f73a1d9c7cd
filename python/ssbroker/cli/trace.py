"""`ssbroker trace`: follows one conversation from instance to instance, and its acknowledgement back."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import pyarrow as pa
import typer
from rich.console import Console
from rich.text import Text

from ssbroker._arguments import optional_guid_bytes
from ssbroker.cli.diagnose_options import (
    REPLY_WITHOUT_ID,
    AddressOption,
    CatalogsArgument,
    FleetOption,
    HtmlOption,
    check_instances,
    instance_paths,
    load_fleet,
    parse_instance_addresses,
    parse_start,
    require_start,
    write_text,
)
from ssbroker.cli.options import (
    AtOption,
    EncodingOption,
    FromTargetOption,
    LenientCatalogOption,
    PendingRequestOption,
    VariableOption,
    as_options,
    check_service_name,
    parse_script_options,
    parse_time,
)
from ssbroker.cli.output_paths import check_writable, refuse_overwriting
from ssbroker.cli.terminal import fitted, print_prose
from ssbroker.exceptions import OptionError

if TYPE_CHECKING:
    from ssbroker.diagnose import Trace

EXAMPLES = r"""Examples:

Follow a conversation that starts in the database Sales of NORTH:

  ssbroker trace --fleet instances/ --from NORTH/Sales --to-service //Stock

Follow a conversation with a broker id through two instances, given by their scripts:

  ssbroker trace NORTH.sql SOUTH.sql --from NORTH/Sales --to-service //Stock \
    --broker-instance D8D4D268-02A3-4C62-8F91-634B89C1E314

Follow a reply of the target:

  ssbroker trace NORTH.sql SOUTH.sql --from SOUTH/Stores --to-service //Sales \
    --from-target --broker-instance D8D4D268-02A3-4C62-8F91-634B89C1E314
"""


def trace(
    *,
    catalogs: CatalogsArgument,
    to_service: Annotated[str, typer.Option(metavar="NAME", help="Service that receives the message.")],
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="INSTANCE/DATABASE",
            help="Instance and database that send the message; omit the instance if only one has the database, and the database if the instance has only one.",
        ),
    ] = None,
    from_service: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Initiator service. Default: the first service of the database, by name."),
    ] = None,
    from_target: FromTargetOption = False,
    broker_instance: Annotated[
        str | None, typer.Option(metavar="GUID", help="Broker id that the conversation names.")
    ] = None,
    conversation_id: Annotated[
        str | None,
        typer.Option(metavar="GUID", help="Conversation id, which determines the choice between equal routes."),
    ] = None,
    fleet: FleetOption = False,
    address: AddressOption = None,
    at: AtOption = None,
    pending_request: PendingRequestOption = "continue",
    as_json: Annotated[bool, typer.Option("--json", help="Print the trace as a JSON object.")] = False,
    html: HtmlOption = None,
    variable: VariableOption = None,
    encoding: EncodingOption = None,
    lenient: LenientCatalogOption = False,
) -> None:
    """Follow a conversation from instance to instance, and its acknowledgement back.

    The last hop ends in delivery, refusal, delay, a drop, a loop or an unknown instance. If the message or its acknowledgement does not arrive, the cause and a remedy follow.

    With --from-target, only the reply is followed, not its acknowledgement, which takes the path of the messages from the initiator.

    Exit status: 0 if the message is delivered and acknowledged (with --from-target, if it is delivered) whichever way ties are broken, 1 if not, 2 after an error.
    """
    from ssbroker.diagnose import html_report  # noqa: PLC0415 - keeps --help fast
    from ssbroker.diagnose import trace as follow  # noqa: PLC0415 - the same
    from ssbroker.diagnose.stuck_messages import explain_messages  # noqa: PLC0415 - the same

    check_service_name(to_service, option="--to-service")
    if from_target and from_service is not None:
        raise OptionError(
            "--from-service and --from-target cannot be used together: the acknowledgement of a reply is not followed"
        )
    if from_service is not None:
        check_service_name(from_service, option="--from-service")
    if html is not None:
        refuse_overwriting([html], inputs=[], catalogs=[*instance_paths(catalogs, is_fleet=fleet).values()])
        check_writable([html])
    current_time = datetime.now(UTC)
    now = parse_time(at, option="--at", default=current_time)
    options = parse_script_options(variable, encoding, lenient=lenient)
    addresses = parse_instance_addresses(address)
    instances = load_fleet(catalogs, is_fleet=fleet, now=current_time, options=options, addresses=addresses)
    check_instances(addresses, instances)
    instance, database = parse_start(start, instances)
    require_start(instance, database, instances)
    with as_options(
        instance="--from",
        database="--from",
        from_service_name="--from-service",
        to_broker_instance="--broker-instance",
        conversation_id="--conversation-id",
    ):
        found = follow(
            instances,
            to_service,
            instance=instance,
            database=database,
            from_service_name=from_service,
            to_broker_instance=broker_instance,
            conversation_id=conversation_id,
            is_initiator=not from_target,
            at=now,
            pending_request=pending_request,
        )
    if html is not None:
        write_text(html, html_report(instances, trace=found, at=now))
    advice: dict[str, str | None] = dict.fromkeys(("code", "cause", "remedy"))
    if not found.always_delivered:
        message = {
            "database": found.database,
            "to_service_name": to_service,
            "to_broker_instance": broker_instance,
            "from_service_name": from_service,
            "is_initiator": not from_target,
        }
        (row,) = explain_messages(
            instances,
            pa.Table.from_pylist([message]),
            instance=found.instance,
            now=now,
            pending_request=pending_request,
            conversation_id=optional_guid_bytes(conversation_id, name="conversation_id"),
        )
        advice = {name: row[name] for name in advice}
    if as_json:
        typer.echo(json.dumps(found.to_dict() | advice, indent=2, ensure_ascii=False))
    else:
        _print(found)
        if advice["remedy"] not in (None, found.advice):  # the advice of the trace is part of its text
            _print_advice(**advice)
        if from_target and broker_instance is None:
            print_prose(Console(), f"\n{REPLY_WITHOUT_ID}")
    if not found.always_delivered:
        raise typer.Exit(1)


def _print(found: Trace) -> None:
    console = Console()
    if not console.is_terminal:
        typer.echo(str(found))
        return
    coloured = Text(fitted(str(found), console.width))
    coloured.highlight_regex(r"(?m)^  => DELIVERED.*$", "green")
    coloured.highlight_regex(r"(?m)^  => (?:DELAYED|ELSEWHERE).*$", "yellow")
    coloured.highlight_regex(r"(?m)^  => (?:DROPPED|LOOP|REFUSED).*$|^It does not (?:arrive|return).*$", "red")
    console.print(coloured, soft_wrap=True)


def _print_advice(code: str | None, cause: str | None, remedy: str | None) -> None:
    console = Console()
    reason = ": ".join(part for part in (code, cause) if part is not None)
    print_prose(console, "\nWhat to do")
    if reason:
        print_prose(console, f"  - {reason}")
    print_prose(console, f"{'    ' if reason else '  - '}{remedy}")
