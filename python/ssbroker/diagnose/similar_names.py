"""Service names that differ only in case, white space or Unicode normalization form."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Mapping

from ssbroker._text import folded_name, quoted_name, without_invisible_characters
from ssbroker.diagnose.catalog_rows import Tables


class SimilarServices:
    """The services of a fleet, which can be searched for similar names."""

    def __init__(self, tables: Mapping[str, Tables]) -> None:
        self._folded = _FoldedNames()
        self.groups: defaultdict[str, dict[str, tuple[str, str]]] = defaultdict(dict)
        """Services with similar names, each with an instance and a database that have the service."""
        for instance, each in tables.items():
            for service, databases in each.hosts.items():
                self.groups[self._folded[service]].setdefault(service, (instance, databases[0]))

    def of(self, wanted: str) -> str | None:
        """Describes how an existing service differs from `wanted`; None if no service is similar, or if `wanted` itself exists."""
        similar = self.groups.get(self._folded[wanted], {})
        if not similar or wanted in similar:
            return None
        service, where = next(iter(similar.items()))
        return f"{'/'.join(where)} has {quoted_name(service)}, which differs only in {difference(wanted, service)}"

    def nearest(self, wanted: str) -> str:
        """Returns the service that `of` describes."""
        return next(iter(self.groups[self._folded[wanted]]))


class _FoldedNames(dict[str, str]):
    """`folded_name` of names, each computed once."""

    def __missing__(self, text: str) -> str:
        self[text] = folded = folded_name(text)
        return folded


def difference(one: str, other: str) -> str:
    """Returns how two similar names differ."""
    if one.casefold() == other.casefold():
        return "case"
    if without_invisible_characters(one) == without_invisible_characters(other):
        return "white space"
    if unicodedata.normalize("NFKC", one) == unicodedata.normalize("NFKC", other):
        return "Unicode normalization form"
    return "case, white space or Unicode normalization form"
