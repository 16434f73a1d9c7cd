"""A micro-batch that is computed again with another catalog, after its rows were sent by the data source `ssbroker`."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

import ssbroker
from ssbroker.broker.database import database_context
from ssbroker.broker.dialogs.bulk_send import NumberedBatch, SendDefaults, send_batch_once
from tests.rules.fragments import B
from tests.spark.source.instances import bodies as queued_bodies
from tests.spark.source.instances import create_instance
from tests.spark.streams.steps import SECOND, START, bodies
from tests.spark.streams.test_delayed_messages import (
    LATE,
    ROUTED,
    catalog,
    catalogs_of,
    message_to,
    runner_with,
    service_batch,
)


def sent_after_restart(folder: Path, first: ssbroker.Catalog, second: ssbroker.Catalog) -> list[bytes]:
    """Returns the sent bodies if the query is killed after sending its first batch and resumes with another catalog; finally all have a route."""
    folder.mkdir(exist_ok=True)
    shop = create_instance(folder / "shop")
    defaults = SendDefaults(from_service="//Shop", to_service="//Orders")
    played = runner_with(first)
    number = 0

    def send(rows: list[bytes]) -> None:
        with ssbroker.Instance.open(shop, background=False) as instance:
            table = pa.table({"message_body": pa.array(rows, pa.binary())})
            send_batch_once(
                database_context(instance.database("Sales")), [table], defaults, batch=NumberedBatch("query", number)
            )

    before = played.state
    fragments = service_batch(message_to(ROUTED, 0), message_to(LATE, 0, conversation=B))
    send(bodies(played.run(fragments)))
    played.state = before  # the process is killed here, so the state of the batch is lost
    catalogs_of(played)[:] = [second]
    send(bodies(played.run(fragments)))
    number = 1
    catalogs_of(played)[:] = [catalog(ROUTED, LATE)]
    send(bodies(played.run(now_us=START + 100 * SECOND)))
    return sorted(queued_bodies(shop))


def test_with_one_catalog_each_message_is_sent_once(tmp_path: Path) -> None:
    for number, one in enumerate((catalog(ROUTED), catalog(ROUTED, LATE))):
        assert sent_after_restart(tmp_path / str(number), one, one) == [b"//Late 0", b"//Routed 0"]


def test_messages_routed_only_by_the_second_catalog_are_lost(tmp_path: Path) -> None:
    """A documented drawback: the batch counts as sent, and the new state does not contain the message any more."""
    assert sent_after_restart(tmp_path, catalog(ROUTED), catalog(ROUTED, LATE)) == [b"//Routed 0"]


def test_messages_routed_only_by_the_first_catalog_are_sent_twice(tmp_path: Path) -> None:
    """The same drawback: the message was sent, and still waits in the state."""
    assert sent_after_restart(tmp_path, catalog(ROUTED, LATE), catalog(ROUTED)) == [
        b"//Late 0",
        b"//Late 0",
        b"//Routed 0",
    ]
