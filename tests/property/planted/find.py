from __future__ import annotations

from collections.abc import Sequence

from tests.oracle.find import BROKER_CONFIGURATION
from tests.oracle.routing import Conversation, Oracle, Route
from tests.oracle.tables import Found, Reading


class NoStep1(Oracle):
    """R11: step 1 is skipped."""

    def step_1(self, conversation: Conversation, live: Sequence[Route]) -> list[Route]:
        return []


class Step1TakesAnyId(Oracle):
    """R11: a route with another id matches."""

    def step_1(self, conversation: Conversation, live: Sequence[Route]) -> list[Route]:
        return [
            route
            for route in live
            if conversation.to_broker_instance is not None
            and route.broker_instance is not None
            and self.same_name(route.remote_service_name, conversation.to_service_name)
        ]


class Step1TakesAnyName(Oracle):
    """R11: a route with this id but another name matches."""

    def step_1(self, conversation: Conversation, live: Sequence[Route]) -> list[Route]:
        return [
            route
            for route in live
            if route.broker_instance is not None
            and route.remote_service_name is not None
            and route.broker_instance == conversation.to_broker_instance
        ]


class NoStep2(Oracle):
    """R12: step 2 is skipped."""

    def step_2(self, conversation: Conversation, live: Sequence[Route]) -> list[Route]:
        return []


class Step2OnlyWithoutId(Oracle):
    """R12: step 2 is only for conversations without a broker id."""

    def step_2(self, conversation: Conversation, live: Sequence[Route]) -> list[Route]:
        return [] if conversation.to_broker_instance is not None else super().step_2(conversation, live)


class Step2TakesAnyId(Oracle):
    """R12: routes with a broker id match too."""

    def step_2(self, conversation: Conversation, live: Sequence[Route]) -> list[Route]:
        return [route for route in live if self.same_name(route.remote_service_name, conversation.to_service_name)]


class NoStep3(Oracle):
    """R13: step 3 is skipped."""

    def step_3(self, conversation: Conversation, reading: Reading, live: Sequence[Route]) -> list[Route]:
        return []


class Step3WithAnyConversation(Oracle):
    """R13: a conversation with a broker id matches routes with another one."""

    def step_3(self, conversation: Conversation, reading: Reading, live: Sequence[Route]) -> list[Route]:
        without = Conversation(
            to_service_name=conversation.to_service_name, conversation_id=conversation.conversation_id
        )
        return super().step_3(without, reading, live)


class Step3KeepsEveryId(Oracle):
    """R13: the routes of all ids remain."""

    def step_3(self, conversation: Conversation, reading: Reading, live: Sequence[Route]) -> list[Route]:
        return [
            route
            for route in live
            if conversation.to_broker_instance is None
            and route.broker_instance is not None
            and self.same_name(route.remote_service_name, conversation.to_service_name)
        ]


class NoStep4(Oracle):
    """R14: step 4 is skipped."""

    def step_4(self, conversation: Conversation, live: Sequence[Route]) -> bool:
        return False


class Step4TakesExpiredRoutes(Oracle):
    """R14: an expired route to the configuration service counts."""

    def step_4(self, conversation: Conversation, live: Sequence[Route]) -> bool:
        everything = [route for table in self.world.tables.values() for route in table]
        mine = [route for route in everything if route in live or self.is_expired(route)]
        return super().step_4(conversation, mine)


class Step4OnlyWithoutId(Oracle):
    """R14: the route to the configuration service must have no broker id."""

    def step_4(self, conversation: Conversation, live: Sequence[Route]) -> bool:
        return super().step_4(conversation, [route for route in live if route.broker_instance is None])


class Step4IgnoresPendingRequests(Oracle):
    """R14: a pending request is not checked."""

    def step_4(self, conversation: Conversation, live: Sequence[Route]) -> bool:
        return any(route.remote_service_name == BROKER_CONFIGURATION for route in live)


class Step4CountsAnyRequest(Oracle):
    """R14: a pending request for another service counts."""

    def step_4(self, conversation: Conversation, live: Sequence[Route]) -> bool:
        return not self.world.pending_requests and super().step_4(conversation, live)


class Step4IgnoresTheOption(Oracle):
    """R14: the option that keeps a conversation DELAYED while a request is pending has no effect."""

    def step_4(self, conversation: Conversation, live: Sequence[Route]) -> bool:
        pending = conversation.to_service_name in self.world.pending_requests
        return not pending and super().step_4(conversation, live)


class Step4WithoutARoute(Oracle):
    """R14: with the option, a pending request delays even without a route to the configuration service."""

    def step_4(self, conversation: Conversation, live: Sequence[Route]) -> bool:
        pending = conversation.to_service_name in self.world.pending_requests
        return (pending and self.pending_request == "delay") or super().step_4(conversation, live)


class NoStep5(Oracle):
    """R15: step 5 is skipped."""

    def step_5(self, live: Sequence[Route]) -> list[Route]:
        return []


class Step5TakesAnyId(Oracle):
    """R15, R20: a route without a name matches although it has a broker id."""

    def step_5(self, live: Sequence[Route]) -> list[Route]:
        return [route for route in live if route.remote_service_name is None]


class Step5BeforeStep4(Oracle):
    """R14, R15: the steps are swapped."""

    def step_4(self, conversation: Conversation, live: Sequence[Route]) -> bool:
        return not self.step_5(live) and super().step_4(conversation, live)


class NoStep6(Oracle):
    """R16: step 6 is skipped."""

    def step_6(self, conversation: Conversation, reading: Reading) -> list[Route]:
        return []


class Step6WithoutId(Oracle):
    """R16: a conversation without a broker id matches too."""

    def step_6(self, conversation: Conversation, reading: Reading) -> list[Route]:
        if not self.hosts(conversation.to_service_name):
            return []
        return [Route(database=reading.table, address="LOCAL")]


class Step6OnlyForItsDatabase(Oracle):
    """R16: only the database with the conversation's broker id counts."""

    def step_6(self, conversation: Conversation, reading: Reading) -> list[Route]:
        routes = super().step_6(conversation, reading)
        return [route for route in routes if self.locate(conversation, reading, route)]


class Step6CountsDisabled(Oracle):
    """R16: a disabled database with the service ends the search at step 6."""

    def step_6(self, conversation: Conversation, reading: Reading) -> list[Route]:
        having = any(service.name == conversation.to_service_name for service in self.world.services)
        if conversation.to_broker_instance is None or not having:
            return []
        return [Route(database=reading.table, address="LOCAL")]


class Step6WithoutHosts(Oracle):
    """R16: a broker id is enough; no database needs to have the service."""

    def step_6(self, conversation: Conversation, reading: Reading) -> list[Route]:
        if conversation.to_broker_instance is None:
            return []
        return [Route(database=reading.table, address="LOCAL")]


class Step6BeforeStep5(Oracle):
    """R15, R16: the steps are swapped."""

    def find(self, conversation: Conversation, reading: Reading) -> Found:
        found = super().find(conversation, reading)
        implied = self.step_6(conversation, reading) if found.step == 5 else []
        return Found(6, implied) if implied else found


class ExpiryIsCheckedLast(Oracle):
    """R3, R4: expired routes end the search, and are ignored only afterwards."""

    def find(self, conversation: Conversation, reading: Reading) -> Found:
        table = self.world.tables[reading.table]
        if self.step_1(conversation, table) and not self.step_1(conversation, self.live_routes(reading.table)):
            return Found(7)
        return super().find(conversation, reading)
