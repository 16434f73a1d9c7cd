"""`ssbroker requeue`: puts messages that failed and were moved to another queue back into the original queue."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from ssbroker._text import count_of
from ssbroker.cli.options import FolderArgument, as_options

EXAMPLES = """Examples:

Put back all messages that were moved away from the queue Orders:

  ssbroker requeue shop/ Sales Orders

List the messages that were moved, with the error of each:

  ssbroker sql shop/ --query "FROM sys.dm_broker_failures"
"""


def requeue(
    *,
    folder: FolderArgument,
    database: Annotated[str, typer.Argument(metavar="DATABASE", help="Database of the queue.")],
    queue: Annotated[
        str,
        typer.Argument(metavar="QUEUE", help="Queue from which the messages were moved, such as Orders or dbo.Orders."),
    ],
    conversation_handle: Annotated[
        str | None,
        typer.Option(metavar="GUID", help="Only the messages of this conversation and its group. Default: all."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the number of messages as a JSON object.")] = False,
) -> None:
    """Put failed messages back into the queue from which they were moved.

    They can be received again, in their original order, and their failures are forgotten. Messages that a job has leased stay where they are.

    Exit status: 0 if the messages were put back, even if there are none, 2 after an error, for example if the queue does not exist.
    """
    from ssbroker.broker.instance import Instance  # noqa: PLC0415 - keeps --help fast
    from ssbroker.broker.overview import overview_of  # noqa: PLC0415

    with Instance.open(folder, background=False) as instance, as_options(conversation_handle="--conversation-handle"):
        messages = instance.database(database).requeue(queue, conversation_handle=conversation_handle)
        moved = [] if messages else overview_of(instance)["moved"]
    if as_json:
        typer.echo(json.dumps({"messages": messages}))
    else:
        names = ", ".join(row["queue"] for row in moved if row["database"] == database)
        hint = f"; messages were moved from other queues: {names}" if names else ""
        typer.echo(f"{count_of(messages, 'message')} put back into {queue}{hint}")
