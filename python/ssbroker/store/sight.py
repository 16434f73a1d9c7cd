"""What stands in a database as a connection sees it, each object read when it is asked for.

`objects.load` makes a picture of everything, which is right for who looks at it often. Who makes thousands of objects, one
after the other, would have a picture made for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, ValuesView
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from ssbroker.store import objects, security
from ssbroker.store.objects import Contract, ContractMessage, MessageType, Objects, Priority, Route, Service
from ssbroker.store.security import Principal, Security
from ssbroker.store.sqlite import Connection

Key = TypeVar("Key")
Found = TypeVar("Found")
_NAME: Final = ("name",)


def sight(connection: Connection) -> Objects:
    """The objects as this connection sees them; what it changes is seen at once, but for the database itself and its master key.

    Args:
        connection: The database, locked.

    Returns:
        The objects. Those of a kind are read by their name, or all together.
    """
    version, broker = objects.load_broker(connection)
    return Objects(
        version=version,
        broker=broker,
        message_types=_Rows[str, MessageType](connection, objects.MESSAGE_TYPES, _NAME, MessageType),
        contracts=_Rows[str, Contract](connection, objects.CONTRACTS, _NAME, _contract_of(connection)),
        queues=_Rows[tuple[str, str], objects.Queue](
            connection, objects.QUEUES, ("schema_name", "name"), objects.queue_of
        ),
        services=_Rows[str, Service](connection, objects.SERVICES, _NAME, _service_of(connection)),
        routes=_Rows[str, Route](connection, objects.ROUTES, _NAME, Route),
        priorities=_Rows[str, Priority](connection, objects.PRIORITIES, _NAME, Priority),
        endpoint=objects.load_endpoint(connection),
        security=_SeenSecurity(
            _Rows[str, Principal](connection, security.PRINCIPALS, _NAME, Principal),
            _Rows[str, security.Certificate](connection, security.CERTIFICATES, _NAME, security.certificate_of),
            _Rows[str, security.Binding](connection, security.BINDINGS, _NAME, security.binding_of),
            _Rows[tuple[int, int], security.PermissionState](
                connection,
                security.PERMISSIONS,
                ("service_id", "principal_id"),
                lambda _service, _principal, state: state,
            ),
            security.load_master_key(connection),
            fingerprints=_Rows[bytes, security.Certificate](
                connection, security.CERTIFICATES, ("fingerprint",), security.certificate_of
            ),
            services=_Rows[str, security.Binding](
                connection, security.BINDINGS, ("remote_service_name",), security.binding_of
            ),
        ),
    )


@dataclass(frozen=True, kw_only=True)
class _SeenSecurity(Security):
    """What is asked for by another key than its name is looked up as well: by walking through all, each binding took longer than the one before."""

    fingerprints: Mapping[bytes, security.Certificate]
    services: Mapping[str, security.Binding]

    @property
    def by_fingerprint(self) -> Mapping[bytes, security.Certificate]:
        """The certificates by their fingerprints."""
        return self.fingerprints

    @property
    def by_service(self) -> Mapping[str, security.Binding]:
        """The bindings by their services."""
        return self.services


class _Rows(Mapping[Key, Found]):
    """The objects of one kind.

    Args:
        connection: Whose sight counts.
        select: What reads them all.
        keys: The columns that tell them apart.
        read: Makes one of its columns.
    """

    def __init__(self, connection: Connection, select: str, keys: tuple[str, ...], read: Callable[..., Found]) -> None:
        self._connection: Final = connection
        self._select: Final = select
        self._keys: Final = keys
        self._read: Final = read

    def __getitem__(self, key: Key) -> Found:
        where = " AND ".join(f"{column} = ?" for column in self._keys)
        values = key if isinstance(key, tuple) else (key,)
        # A name of this library, and the columns too.
        row: Any = self._connection.execute(f"SELECT * FROM ({self._select}) WHERE {where}", values).fetchone()  # noqa: S608
        if row is None:
            raise KeyError(key)
        return self._read(*row)

    def __iter__(self) -> Iterator[Key]:
        columns = ", ".join(self._keys)
        rows: list[Any] = self._connection.execute(f"SELECT {columns} FROM ({self._select})").fetchall()  # noqa: S608
        return iter([row if len(self._keys) > 1 else row[0] for row in rows])

    def __len__(self) -> int:
        number: int = self._connection.execute(f"SELECT count(*) FROM ({self._select})").get  # noqa: S608
        return number

    def values(self) -> ValuesView[Found]:
        """All of them, read at once."""
        rows: list[Any] = self._connection.execute(self._select).fetchall()
        return dict(enumerate(self._read(*row) for row in rows)).values()


def _contract_of(connection: Connection) -> Callable[[int, str], Contract]:
    def read(number: int, name: str) -> Contract:
        rows: list[Any] = connection.execute(
            "SELECT message_type_id, is_sent_by_initiator, is_sent_by_target FROM ssb_contract_messages "
            "WHERE service_contract_id = ?",
            (number,),
        ).fetchall()
        messages = {kind: ContractMessage(kind, bool(initiator), bool(target)) for kind, initiator, target in rows}
        return Contract(number, name, messages)

    return read


def _service_of(connection: Connection) -> Callable[[int, str, int, int], Service]:
    def read(number: int, name: str, queue: int, owner: int) -> Service:
        rows: list[Any] = connection.execute(
            "SELECT service_contract_id FROM ssb_service_contracts WHERE service_id = ?", (number,)
        ).fetchall()
        return Service(number, name, queue, frozenset(contract for (contract,) in rows), owner)

    return read
