"""R31 to R34: where in this instance the target service is."""

from __future__ import annotations

from collections.abc import Sequence

from tests.oracle.picking import SALT_DATABASE
from tests.oracle.tables import Reading
from tests.oracle.ties import Ties
from tests.oracle.world import Conversation, Database, Route


class Locate(Ties):
    """Locates the target service for an address that is LOCAL."""

    def locate(self, conversation: Conversation, reading: Reading, route: Route) -> list[Database]:
        """R31, R32: the databases that may take the conversation; empty if none can."""
        hosts = self.hosts(conversation.to_service_name)
        broker_id = self.wanted_broker_id(conversation, route)
        if broker_id is not None:
            # R31: the database with that id, if its broker is enabled and it has the service.
            return [database for database in hosts if database.service_broker_guid == broker_id]
        return self.own_database_first(hosts, conversation, reading)

    def own_database_first(
        self, hosts: Sequence[Database], conversation: Conversation, reading: Reading
    ) -> list[Database]:
        """R32: the database that holds the conversation comes first; what came from outside has none."""
        if not reading.from_outside:
            for database in hosts:
                if database.name == conversation.database:
                    return [database]
        return list(hosts)

    def wanted_broker_id(self, conversation: Conversation, route: Route) -> object:
        """R31: the conversation's own broker id, else the chosen route's."""
        if conversation.to_broker_instance is not None:
            return conversation.to_broker_instance
        return route.broker_instance

    def pick_database(
        self, databases: Sequence[Database], conversation: Conversation, reading: Reading, route: Route
    ) -> Database:
        """R24, R32: among several others the tie break picks; R31 and the own database leave no tie."""
        own = not reading.from_outside and databases[0].name == conversation.database
        if own or self.wanted_broker_id(conversation, route) is not None:
            return databases[0]
        turn = ("database", conversation.to_service_name)
        return self.pick(databases, conversation, self.salt(SALT_DATABASE, reading), turn)

    def hosts(self, service_name: str) -> list[Database]:
        """R33: the enabled databases that have the service, by name (R24)."""
        having = {service.database for service in self.world.services if self.same_name(service.name, service_name)}
        hosts = [
            database
            for database in self.world.instance_databases
            if database.name in having and self.is_delivering(database)
        ]
        return sorted(hosts, key=lambda database: database.name.encode())

    def is_delivering(self, database: Database) -> bool:
        """R33: a database whose message delivery is disabled does not count."""
        return database.is_broker_enabled

    def is_sender_disabled(self, conversation: Conversation) -> bool:
        """R34: a conversation started in a database whose delivery is disabled stays in its transmission queue."""
        return any(
            database.name == conversation.database and not database.is_broker_enabled
            for database in self.world.instance_databases
        )
