"""The tables and lines in which `status`, `watch` and the shell show the state of an instance."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from ssbroker._text import count_of
from ssbroker.cli.terminal import FittedTable, cell, print_prose, rows_table


def print_parts(console: Console, parts: Iterable[Text | FittedTable]) -> None:
    """Prints tables, and lines of prose."""
    for part in parts:
        if isinstance(part, Text):
            print_prose(console, part.plain, str(part.style))
        else:
            console.print(part, crop=False)


def database_rows(found: dict[str, Any]) -> Text | FittedTable:
    """Returns the table of the databases."""
    return state_table("Databases", [_database_row(row) for row in found["databases"]])


def database_problems(found: dict[str, Any]) -> Iterator[Text]:
    """Yields why databases cannot be read or written."""
    for row in found["databases"]:
        if row["problem"] is not None:
            yield cell(f"database {row['name']}: {row['problem']}")


def queue_rows(found: dict[str, Any]) -> Text | FittedTable:
    """Returns the table of the queues, or a sentence if there are none."""
    rows = [_queue_row(row, found["queues"]) for row in found["queues"]]
    return state_table("Queues", rows) if rows else Text("There are no queues.")


def queue_problems(found: dict[str, Any], folder: Path) -> Iterator[Text]:
    """Yields why queues are disabled, and which messages were moved to another queue; `folder` is that of the instance."""
    for row in found["queues"]:
        if row["problem"] is not None:
            yield cell(f"queue {row['queue']}, in {row['database']}: {row['problem']}")
    for row in found["moved"]:
        groups = count_of(row["groups"], "conversation group")
        command = shlex.join(["ssbroker", "requeue", str(folder), row["database"], row["queue"]])
        yield cell(
            f"queue {row['queue']}, in {row['database']}: {groups} moved to {row['moved_to']}; last failure "
            f"{row['last_failed_at']:.19} UTC: {row['error']}. To put the messages back: `{command}`"
        )


def conversation_rows(found: dict[str, Any]) -> Text | FittedTable:
    """Returns the table of the numbers of conversations by state, or a sentence if there are none."""
    rows = [_conversation_row(row) for row in found["conversations"]]
    return state_table("Conversations", rows) if rows else Text("There are no conversations.")


def waiting_rows(found: dict[str, Any]) -> Text | FittedTable:
    """Returns the table of the undelivered messages by service, or a sentence if there are none."""
    rows = [transmission_row(row) for row in found["transmission_queue"]]
    return state_table("Transmission queue", rows) if rows else Text("The transmission queue is empty.")


_FOLDER_ARGUMENT: Final = re.compile(r"(?<=`ssbroker )([a-z]+) FOLDER\b")


def waiting_reasons(found: dict[str, Any], folder: Path) -> Iterator[Text]:
    """Yields why messages are not delivered; `folder` is that of the instance.

    Shown below the table, so that statements and commands in the advice can be copied.
    """
    for row in found["transmission_queue"]:
        reason = row["transmission_status"] or "not sent, or not acknowledged yet"
        reason = _FOLDER_ARGUMENT.sub(lambda command: f"{command[1]} {shlex.quote(str(folder))}", reason)
        yield cell(f"to {row['to_service_name']}, from {row['database']}: {reason}")


def serving_line(serving: dict[str, Any] | None) -> Text:
    """Returns the line that names the process that serves the instance."""
    if serving is None:
        return Text("No process serves the instance.")
    process = "A process" if serving["process"] is None else f"Process {serving['process']}"
    if serving["listens"] is None:
        return Text(f"{process} serves the instance; its address and connections are unknown.")
    return cell(f"{process} serves the instance at {serving['listens']}, as of {serving['written_at']}.")


def _database_row(row: dict[str, Any]) -> dict[str, str]:
    broker = "enabled" if row["is_broker_enabled"] else "disabled"
    if row["state_desc"] != "ONLINE":
        broker = "file cannot be read"
    return {"database": row["name"], "broker": broker, "broker id": row["service_broker_guid"]}


def _queue_row(row: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, str]:
    return {
        "database": row["database"],
        "queue": row["queue"],
        "state": queue_state(row),
        "ready": str(row["ready"]),
        "oldest": age_text(row["oldest_seconds"]),
        **other_counts(row, rows),
    }


def other_counts(row: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, str]:
    """Returns the cells for messages that cannot currently be received; omits statuses that do not occur in any queue."""
    statuses = ("waiting", "leased", "incomplete", "retained")
    return {name: str(row[name]) for name in statuses if any(each[name] for each in rows)}


def queue_state(row: dict[str, Any]) -> str:
    """Returns whether a queue is `on` or `off`."""
    return "on" if row["is_receive_enabled"] and row["is_enqueue_enabled"] else "off"


def _conversation_row(row: dict[str, Any]) -> dict[str, str]:
    return {
        "database": row["database"],
        "state": f"{row['state']} {row['state_desc']}",
        "count": str(row["count"]),
        "oldest": age_text(row["oldest_seconds"]),
    }


def age_text(seconds: int | None) -> str:
    """Returns an age as hours, minutes and seconds; an empty text for None."""
    return "" if seconds is None else str(timedelta(seconds=seconds))


def transmission_row(row: dict[str, Any]) -> dict[str, str]:
    """Returns the cells of the undelivered messages for a service."""
    return {
        "database": row["database"],
        "to": row["to_service_name"],
        "messages": str(row["messages"]),
        "conversations": str(row["conversations"]),
        "oldest": age_text(row["oldest_seconds"]),
        "status": (row["transmission_status"] or "").partition(":")[0],
    }


def connection_row(row: dict[str, Any]) -> dict[str, str]:
    """Returns the cells of a connection."""
    paused = [
        text
        for column, text in (
            ("is_receive_flow_controlled", ", receiving paused"),
            ("is_send_flow_controlled", ", sending paused"),
        )
        if row[column]
    ]
    return {
        "instance": row["remote_user_name"] or "",
        "principal": row["principal_name"] or "(none)",
        "direction": "inbound" if row["is_accept"] else "outbound",
        "state": row["state_desc"] + "".join(paused),
        "connected": row["connect_time"] or "",
        "bytes sent": str(row["total_bytes_sent"] or 0),
        "bytes received": str(row["total_bytes_received"] or 0),
    }


def state_table(title: str, rows: list[dict[str, str]]) -> FittedTable:
    """Returns a table whose states are coloured if they need attention."""
    return rows_table(
        list(rows[0]), [[cell(value, style_of(value)) for value in row.values()] for row in rows], title=title
    )


def style_of(value: str) -> str:
    """Returns the colour of a cell."""
    return {
        "off": "red",
        "disabled": "yellow",
        "file cannot be read": "red",
        "ER ERROR": "red",
    }.get(value, "")
