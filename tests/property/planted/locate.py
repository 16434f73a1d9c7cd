from __future__ import annotations

from collections.abc import Sequence

from tests.oracle.routing import Conversation, Database, Decision, Oracle, Route
from tests.oracle.tables import Reading


class LocateIgnoresIds(Oracle):
    """R31: any database that has the service is taken, regardless of its id."""

    def required_broker_id(self, conversation: Conversation, route: Route) -> object:
        return None


class LocateIgnoresTheRoutesId(Oracle):
    """R31: the route's id is not checked."""

    def required_broker_id(self, conversation: Conversation, route: Route) -> object:
        return conversation.to_broker_instance


class LocateIgnoresTheConversationsId(Oracle):
    """R31: the conversation's own id is not checked."""

    def required_broker_id(self, conversation: Conversation, route: Route) -> object:
        return route.broker_instance


class LocateIgnoresServices(Oracle):
    """R31: the database with the id is taken even without the service."""

    def locate(self, conversation: Conversation, reading: Reading, route: Route) -> list[Database]:
        broker_id = self.required_broker_id(conversation, route)
        enabled = [database for database in self.world.instance_databases if database.is_broker_enabled]
        if broker_id is not None:
            return [database for database in enabled if database.service_broker_guid == broker_id]
        return super().locate(conversation, reading, route)


class OwnDatabaseDespiteTheId(Oracle):
    """R31, R32: the own database comes first although a broker id names another one."""

    def locate(self, conversation: Conversation, reading: Reading, route: Route) -> list[Database]:
        found = super().locate(conversation, reading, route)
        return (
            self.own_database_first(self.hosts(conversation.to_service_name), conversation, reading) if found else found
        )


class OwnDatabaseDoesNotComeFirst(Oracle):
    """R32: the own database does not come first."""

    def own_database_first(
        self, hosts: Sequence[Database], conversation: Conversation, reading: Reading
    ) -> list[Database]:
        return list(hosts)


class OwnDatabaseOnly(Oracle):
    """R32: the other databases are not searched."""

    def own_database_first(
        self, hosts: Sequence[Database], conversation: Conversation, reading: Reading
    ) -> list[Database]:
        return [database for database in hosts if reading.from_outside or database.name == conversation.database]


class OwnDatabaseAfterReEntry(Oracle):
    """R32: the database in which a re-entered conversation started comes first."""

    def own_database_first(
        self, hosts: Sequence[Database], conversation: Conversation, reading: Reading
    ) -> list[Database]:
        return super().own_database_first(hosts, conversation, Reading(reading.table, from_outside=False))


class DisabledDatabasesCount(Oracle):
    """R33: the services of a disabled database are found."""

    def is_delivering(self, database: Database) -> bool:
        return True


class DisabledMsdbCounts(Oracle):
    """R33: msdb counts as enabled."""

    def is_delivering(self, database: Database) -> bool:
        return database.is_broker_enabled or database.name == "msdb"


class DisabledDatabasesSend(Oracle):
    """R34: conversations of a disabled database are routed."""

    def is_sender_disabled(self, conversation: Conversation) -> bool:
        return False


class DisabledDatabasesDeliverLocally(Oracle):
    """R34: conversations of a disabled database are delivered within the instance."""

    def decide(self, conversation: Conversation) -> Decision:
        delayed = super().decide(conversation)
        if delayed.reason != "sender_disabled" or conversation.database is None:
            return delayed
        routed = self.process(conversation, Reading(conversation.database, from_outside=False))
        return routed if routed.outcome == "LOCAL" else delayed


class DisabledMsdbBlocksArrivals(Oracle):
    """R34: nothing arrives while msdb is disabled."""

    def from_outside(self, conversation: Conversation, *, re_entered: bool) -> Decision:
        msdb = next(database for database in self.world.instance_databases if database.name == "msdb")
        if not msdb.is_broker_enabled:
            return self.without_route(conversation, "DELAYED", "sender_disabled", match_step=None)
        return super().from_outside(conversation, re_entered=re_entered)
