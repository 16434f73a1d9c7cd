"""A batch that is computed again by another catalog, after its rows were sent: what format `ssbroker` makes of it (U24)."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

import ssbroker
from ssbroker.broker.database import context_of as database_context
from ssbroker.broker.dialogs.bulk_send import NumberedBatch, SendDefaults, send_batch_once
from tests.rules.fragments import B
from tests.spark.instances import bodies as waiting
from tests.spark.instances import made
from tests.spark.stream_steps import SECOND, START, bodies
from tests.spark.test_stream_delayed import LATE, ROUTED, catalog, catalogs_of, player, sent, to


def sent_to_the_end(folder: Path, first: ssbroker.Catalog, second: ssbroker.Catalog) -> list[bytes]:
    """What was sent, when the query is killed after its first batch was sent, and goes on by another catalog; at last there is a route for all."""
    folder.mkdir(exist_ok=True)
    shop = made(folder / "shop")
    said = SendDefaults(from_service="//Shop", to_service="//Orders")
    played = player(first)
    number = 0

    def send(rows: list[bytes]) -> None:
        with ssbroker.Instance.open(shop, background=False) as instance:
            table = pa.table({"message_body": pa.array(rows, pa.binary())})
            send_batch_once(
                database_context(instance.database("Sales")), [table], said, batch=NumberedBatch("query", number)
            )

    before = played.state
    fragments = sent(to(ROUTED, 0), to(LATE, 0, conversation=B))
    send(bodies(played.play(fragments)))
    played.state = before  # the process ends here, so nothing of the batch is kept
    catalogs_of(played)[:] = [second]
    send(bodies(played.play(fragments)))
    number = 1
    catalogs_of(played)[:] = [catalog(ROUTED, LATE)]
    send(bodies(played.play(now_us=START + 100 * SECOND)))
    return sorted(waiting(shop))


def test_by_one_catalog_each_is_sent_once(tmp_path: Path) -> None:
    for number, one in enumerate((catalog(ROUTED), catalog(ROUTED, LATE))):
        assert sent_to_the_end(tmp_path / str(number), one, one) == [b"//Late 0", b"//Routed 0"]


def test_what_only_the_second_catalog_has_a_route_for_is_lost(tmp_path: Path) -> None:
    """A drawback, which the documentation tells: the batch counts as sent, and the state that is kept knows nothing of it any more."""
    assert sent_to_the_end(tmp_path, catalog(ROUTED), catalog(ROUTED, LATE)) == [b"//Routed 0"]


def test_what_only_the_first_catalog_has_a_route_for_is_sent_twice(tmp_path: Path) -> None:
    """The same drawback: it was sent, and waits in the state that is kept."""
    assert sent_to_the_end(tmp_path, catalog(ROUTED, LATE), catalog(ROUTED)) == [
        b"//Late 0",
        b"//Late 0",
        b"//Routed 0",
    ]
