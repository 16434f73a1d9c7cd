"""R11 to R17: the seven steps of *Find*."""

from __future__ import annotations

from collections.abc import Sequence

from tests.oracle.address import LOCAL
from tests.oracle.locate import Locate
from tests.oracle.tables import Found, Reading
from tests.oracle.world import Conversation, Route

BROKER_CONFIGURATION = "SQL/ServiceBroker/BrokerConfiguration"


class Find(Locate):
    """Finds the routes that match a conversation."""

    def find(self, conversation: Conversation, reading: Reading) -> Found:
        """R11 to R17: returns the routes of the first step that yields one."""
        live = self.live_routes(reading.table)
        if routes := self.step_1(conversation, live):
            return Found(1, routes)
        if routes := self.step_2(conversation, live):
            return Found(2, routes)
        if routes := self.step_3(conversation, reading, live):
            return Found(3, routes)
        if self.step_4(conversation, live):
            return Found(4)
        if routes := self.step_5(live):
            return Found(5, routes)
        if routes := self.step_6(conversation, reading):
            return Found(6, routes)
        return Found(7)

    def step_1(self, conversation: Conversation, live: Sequence[Route]) -> list[Route]:
        """R11: if the conversation names a broker id: routes with exactly this service name and this broker id."""
        if conversation.to_broker_instance is None:
            return []
        return [
            route
            for route in live
            if self.same_name(route.remote_service_name, conversation.to_service_name)
            and route.broker_instance == conversation.to_broker_instance
        ]

    def step_2(self, conversation: Conversation, live: Sequence[Route]) -> list[Route]:
        """R12: routes with exactly this service name and no broker id."""
        return [
            route
            for route in live
            if self.same_name(route.remote_service_name, conversation.to_service_name) and route.broker_instance is None
        ]

    def step_3(self, conversation: Conversation, reading: Reading, live: Sequence[Route]) -> list[Route]:
        """R13:

        if the conversation names no broker id: routes with this name that have one; of several ids, one is picked.
        """
        if conversation.to_broker_instance is not None:
            return []
        routes = [
            route
            for route in live
            if self.same_name(route.remote_service_name, conversation.to_service_name)
            and route.broker_instance is not None
        ]
        if not routes:
            return []
        # R24: ids are ordered by the lowest route id of their live routes.
        ids = list(dict.fromkeys(route.broker_instance for route in self.by_route_id(routes)))
        turn = ("broker id", reading.table, conversation.to_service_name)
        picked = self.pick(ids, conversation, turn)
        return [route for route in routes if route.broker_instance == picked]

    def step_4(self, conversation: Conversation, live: Sequence[Route]) -> bool:
        """R14: a live route to the configuration service, if no request for this service is pending."""
        if not any(self.same_name(route.remote_service_name, BROKER_CONFIGURATION) for route in live):
            return False
        pending = any(self.same_name(name, conversation.to_service_name) for name in self.world.pending_requests)
        return not pending or self.pending_request == "delay"

    def step_5(self, live: Sequence[Route]) -> list[Route]:
        """R15: routes with neither service name nor broker id."""
        return [route for route in live if route.remote_service_name is None and route.broker_instance is None]

    def step_6(self, conversation: Conversation, reading: Reading) -> list[Route]:
        """R16: if the conversation names a broker id and a database of the instance has a service of this name."""
        if conversation.to_broker_instance is None or not self.hosts(conversation.to_service_name):
            return []
        return [Route(database=reading.table, remote_service_name=conversation.to_service_name, address=LOCAL)]
