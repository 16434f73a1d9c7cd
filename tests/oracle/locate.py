"""R31 to R34: the location of the target service in this instance."""

from __future__ import annotations

from collections.abc import Sequence

from tests.oracle.tables import Reading
from tests.oracle.ties import Ties
from tests.oracle.world import Conversation, Database, Route


class Locate(Ties):
    """Locates the target service for the address LOCAL."""

    def locate(self, conversation: Conversation, reading: Reading, route: Route) -> list[Database]:
        """R31, R32: returns the databases that may take the conversation; none if there are none."""
        hosts = self.hosts(conversation.to_service_name)
        broker_id = self.required_broker_id(conversation, route)
        if broker_id is not None:
            # R31: the database with that id, if its broker is enabled and it has the service.
            return [database for database in hosts if database.service_broker_guid == broker_id]
        return self.own_database_first(hosts, conversation, reading)

    def own_database_first(
        self, hosts: Sequence[Database], conversation: Conversation, reading: Reading
    ) -> list[Database]:
        """R32: puts the conversation's own database first; conversations from outside have none."""
        if not reading.from_outside:
            for database in hosts:
                if database.name == conversation.database:
                    return [database]
        return list(hosts)

    def required_broker_id(self, conversation: Conversation, route: Route) -> object:
        """R31: returns the conversation's own broker id, else that of the chosen route."""
        if conversation.to_broker_instance is not None:
            return conversation.to_broker_instance
        return route.broker_instance

    def pick_database(
        self, databases: Sequence[Database], conversation: Conversation, reading: Reading, route: Route
    ) -> Database:
        """R24, R32: the tie break picks among several other databases; there is no tie for R31 and the own database."""
        own = not reading.from_outside and databases[0].name == conversation.database
        if own or self.required_broker_id(conversation, route) is not None:
            return databases[0]
        turn = ("database", conversation.to_service_name)
        return self.pick(databases, conversation, turn)

    def hosts(self, service_name: str) -> list[Database]:
        """R33: returns the enabled databases that have the service, by name (R24)."""
        having = {service.database for service in self.world.services if self.same_name(service.name, service_name)}
        hosts = [
            database
            for database in self.world.instance_databases
            if database.name in having and self.is_delivering(database)
        ]
        return sorted(hosts, key=lambda database: database.name.encode())

    def is_delivering(self, database: Database) -> bool:
        """R33: a database with message delivery disabled does not count."""
        return database.is_broker_enabled

    def is_sender_disabled(self, conversation: Conversation) -> bool:
        """R34: a conversation started in a database whose delivery is disabled stays in its transmission queue."""
        return any(
            database.name == conversation.database and not database.is_broker_enabled
            for database in self.world.instance_databases
        )
