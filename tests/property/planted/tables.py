from __future__ import annotations

import unicodedata

from tests.oracle.routing import Conversation, Decision, Oracle, Route
from tests.oracle.tables import Reading
from tests.oracle.world import MSDB


class OneTableForAll(Oracle):
    """R1: the routes of every database are read."""

    def live_routes(self, table: str) -> list[Route]:
        return [route for name in self.world.tables for route in super(OneTableForAll, self).live_routes(name)]


class EveryConversationReadsMsdb(Oracle):
    """R2: a conversation started here reads msdb's table too."""

    def process(self, conversation: Conversation, reading: Reading) -> Decision:
        return super().process(conversation, Reading(MSDB, reading.from_outside, reading.re_entered))


class ArrivalsReadTheFirstDatabase(Oracle):
    """R2: messages from outside read the table of the first database."""

    def process(self, conversation: Conversation, reading: Reading) -> Decision:
        table = self.world.instance_databases[0].name if reading.from_outside else reading.table
        return super().process(conversation, Reading(table, reading.from_outside, reading.re_entered))


class ExpiresAfterItsLifetime(Oracle):
    """R3: a route is still live at the time of its expiry."""

    def is_expired(self, route: Route) -> bool:
        return route.lifetime is not None and self.now > route.lifetime


class ExpiresInWholeSeconds(Oracle):
    """R3: only whole seconds count."""

    def is_expired(self, route: Route) -> bool:
        return route.lifetime is not None and int(self.now.timestamp()) >= int(route.lifetime.timestamp())


class NeverExpires(Oracle):
    """R3: expired routes are read."""

    def is_expired(self, route: Route) -> bool:
        return False


class ExpiresImmediately(Oracle):
    """R3: a route with a lifetime is never read."""

    def is_expired(self, route: Route) -> bool:
        return route.lifetime is not None


class _OtherNames(Oracle):
    def compared(self, name: str) -> object:
        return name

    def same_name(self, one: str | None, other: str | None) -> bool:
        return one is not None and other is not None and self.compared(one) == self.compared(other)


class NamesInAnyCase(_OtherNames):
    """R5: names are compared without regard to case."""

    def compared(self, name: str) -> object:
        return name.casefold()


class NamesWithoutTrailingSpace(_OtherNames):
    """R5: trailing spaces are ignored, as in SQL."""

    def compared(self, name: str) -> object:
        return name.rstrip(" ")


class NamesInOneUnicodeForm(_OtherNames):
    """R5: names are compared after Unicode normalization."""

    def compared(self, name: str) -> object:
        return unicodedata.normalize("NFC", name)


class NamesOfSixtyFourBytes(_OtherNames):
    """R5: only 64 bytes of a name are compared."""

    def compared(self, name: str) -> object:
        return name.encode()[:64]


class NamesUpToANul(_OtherNames):
    """R5: a name ends at its first zero byte."""

    def compared(self, name: str) -> object:
        return name.partition("\x00")[0]


class NamesOfOneLengthAndEnd(_OtherNames):
    """R5: only the length and the last bytes of names are compared."""

    def compared(self, name: str) -> object:
        return len(name.encode()), name.encode()[-4:]


class EmptyNameIsNone(Oracle):
    """R5: an empty service name matches nothing."""

    def same_name(self, one: str | None, other: str | None) -> bool:
        return bool(one) and super().same_name(one, other)


class HostsByCase(Oracle):
    """R6: hosts compare case-sensitively."""

    def normalize(self, address: str) -> str:
        normal = super().normalize(address)
        host = address[6:].partition("/")[0].partition(":")[0]
        return f"TCP://{host}:{normal.rpartition(':')[2]}" if normal.startswith("TCP") and host[0] != "[" else normal


class AnotherDefaultPort(Oracle):
    """R6: the default port is 4023."""

    def normalize(self, address: str) -> str:
        normal = super().normalize(address)
        return normal if "4022" in address else normal.replace(":4022", ":4023")
