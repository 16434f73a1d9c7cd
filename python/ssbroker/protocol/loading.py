"""Directions are read back as something comes for them, so many at once as memory has room for (P26, N38)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from ssbroker.protocol.assembly import Assembly
from ssbroker.protocol.columns import listed
from ssbroker.protocol.dialog import Dialog
from ssbroker.protocol.incoming import Part, charge_of
from ssbroker.protocol.ledger import Key, Ledger
from ssbroker.protocol.rows import Row

Fragment: TypeAlias = tuple[Dialog, Row, bytes]
"""A fragment that has been opened, with its dialog and its body."""


@dataclass(frozen=True, slots=True)
class Share:
    """What of a batch is taken in one go: all of some dialogs.

    Attributes:
        fragments: The fragments.
        dialogs: The dialogs.
        kept: Of which of them the ledger keeps fragments, so that these have to be read back unless they are in memory.
    """

    fragments: Sequence[Fragment]
    dialogs: Mapping[Key, Dialog]
    kept: frozenset[Key]


class Loading:
    """Has directions in memory when something comes for them.

    Args:
        ledger: Where the fragments are that came before.
        assembly: The directions that are loaded.
    """

    __slots__ = ("_assembly", "_ledger")

    def __init__(self, ledger: Ledger, assembly: Assembly) -> None:
        self._ledger: Final = ledger
        self._assembly: Final = assembly

    def shares(self, opened: Sequence[Fragment], *, begun: Mapping[Key, Dialog]) -> Iterator[Share]:
        """Shares a batch out, so that each share and what was kept for its dialogs fit into the memory that there is for dialogs read back.

        Args:
            opened: The fragments.
            begun: Dialogs that begin with this batch.

        Yields:
            The shares: dialogs in memory before others, and of these those first that have most there.
        """
        dialogs = {dialog.key: dialog for dialog, _, _ in opened}
        missing = [key for key in _missing(dialogs) if key not in begun]
        amounts = self._ledger.kept(missing) if missing else {}
        kept = frozenset(amounts)
        most = self._assembly.max_pending_bytes // 2
        fresh = charge_of(len(opened), sum(len(body) for _, _, body in opened))
        if not kept and self._assembly.pending_bytes + fresh <= most:
            yield Share(opened, dialogs, kept)
            return
        of_dialog: dict[Key, list[Fragment]] = {}
        for fragment in opened:
            of_dialog.setdefault(fragment[0].key, []).append(fragment)
        there = {
            key: charge_of(*amounts[key])
            if key in amounts
            else 0
            if dialog.incoming is None
            else dialog.incoming.charge
            for key, dialog in dialogs.items()
        }
        # What leaves memory for those before it is read back in its turn.
        kept = frozenset(key for key, charge in there.items() if charge)
        share: list[Fragment] = []
        room = most
        for key in sorted(dialogs, key=lambda each: (each in amounts, -there[each])):
            needs = there[key] + charge_of(len(of_dialog[key]), sum(len(body) for _, _, body in of_dialog[key]))
            if share and needs > room:
                yield _share(share, kept)
                share, room = [], most
            share += of_dialog[key]
            room -= needs
        yield _share(share, kept)

    def load(self, share: Share, *, begun: Mapping[Key, Dialog]) -> list[Part]:
        """Loads the directions of a share.

        Args:
            share: The share.
            begun: Dialogs that begin with this batch.

        Returns:
            The fragments that are kept for those that were not in memory.
        """
        missing = _missing(share.dialogs)
        known = [key for key in missing if key not in begun]
        rows = dict(zip(known, self._ledger.endpoints(known), strict=True)) if known else {}
        for key, dialog in missing.items():
            row = rows.get(key)
            dialog.incoming = self._assembly.load(0 if row is None else row.receive_sequence)
        kept = [key for key in known if key in share.kept]
        if not kept:
            return []
        parts: list[Part] = []
        columns: list[list[Any]] = [listed(column) for column in self._ledger.stored(kept).columns]
        for conversation, side, sequence, number, count, body, message, fragment, *kind in zip(*columns, strict=True):
            incoming = missing[conversation, not side].incoming
            if incoming is not None and sequence >= incoming.base:
                kind_of: Any = tuple(kind)
                parts.append(Part(incoming, sequence, number, count, body, message, fragment, kind_of, is_stored=True))
        return parts


def _missing(dialogs: Mapping[Key, Dialog]) -> dict[Key, Dialog]:
    return {key: dialog for key, dialog in dialogs.items() if dialog.incoming is None or not dialog.incoming.is_loaded}


def _share(fragments: Sequence[Fragment], kept: frozenset[Key]) -> Share:
    return Share(fragments, {dialog.key: dialog for dialog, _, _ in fragments}, kept)
