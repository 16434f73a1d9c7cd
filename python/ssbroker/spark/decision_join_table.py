"""The decision table, in the form that Spark joins read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from fractions import Fraction
from functools import cache, reduce
from itertools import pairwise
from math import lcm
from typing import Any, Final

import pyarrow as pa

from ssbroker._arguments import epoch_microseconds
from ssbroker.catalog.catalog import Catalog
from ssbroker.exceptions import UnknownDatabaseError
from ssbroker.router import Router, tie_break_hash
from ssbroker.schemas import DECISIONS
from ssbroker.spark import compat
from ssbroker.spark.arrow_columns import ArrowColumn, combined, pc, with_column
from ssbroker.spark.decision_codes import CODED_FIELDS, DECISION_CODE, LABEL_BITS, Labels

IN_NAME: Final = ""
"""A placeholder in the next hop of a decision, for the address at the start of the service name."""

KINDS: Final = 2
"""The number of kinds of broker ids for a name without a row: no id, and any id."""

DETAILS: Final = {name: sql_type for name, sql_type in CODED_FIELDS.items() if name != DECISION_CODE}
"""The fields of the structs in `details`."""

_LISTED: Final = ("decision_code", "only_from_initiator", "details")

CANDIDATES_BITS: Final = 12
CANDIDATES_MAX: Final = (1 << CANDIDATES_BITS) - 1

_PLACEHOLDER: Final = "TCP://ssbroker-next-hop-in-name:1"
_NO_ADDRESS: Final = "ssbroker no address"
_OTHER_ID: Final = b"ssbroker no such"
_IDS_TRIED: Final = 4096
_HASHES: Final = 1 << 64
_LOWEST_HASH: Final = -_HASHES // 2
_DICTIONARIES: Final = {field.name for field in DECISIONS if pa.types.is_dictionary(field.type)}


@dataclass(frozen=True, kw_only=True)
class DecisionJoinTable:
    """The decision table as build sides of joins.

    The arrays of a row describe the decisions for one name: without a broker id, with an id that is not listed, and with each of `ids`.
    `decision_code`, `only_from_initiator` and `details` (structs of the other fields) contain one value for each of
    these kinds of ids if they are in `by_kind`, and otherwise one value for each candidate. `choice` contains, for each
    kind, the position of the first candidate, shifted by `CANDIDATES_BITS`, and the number of candidates. Each
    candidate is picked by an equal share of the hashes; a candidate with a larger share is listed several times. In
    `named`, `choice` is null if each kind has one candidate, whose position then equals the position of the kind.

    Attributes:
        databases: The names of the databases. The position of a name is the index of the database's routing table (its
            *source*). The next index is the source of messages from other instances.
        named: A row for each source and listed service name. `outcome` and `reason` are the codes that all its decisions share, or null.
        unnamed: The arrays for all other names, for each source. For sources in `reads_names`, they contain the kinds
            for each form of names in turn (see `_Completion`).
        replies: A row for each service name of this instance, for replies from other instances; None if no database has a broker id.
        dropped_reply: The decision code of replies that match no row of `replies`.
        database_ids: The broker ids of the databases.
        fields: `only_from_initiator` and the fields of `details`, except fields that are always null or false.
        by_kind: The arrays whose values are the same for all candidates of a kind.
        candidates_max: The largest number of candidates in any decision.
        reads_names: The sources whose decisions depend on the address at the start of a name without a row.
        own_addresses: The network addresses of this instance.
        expected_databases: The expected databases, for the error about an unknown database.
        why_incomplete: Why the table lacks decisions; None if it contains a decision for every conversation.
        decided_at: The time of the decisions, in microseconds since 1970.
        valid_until: The time at which the first route on which a decision depends expires; None if no such route expires.
    """

    databases: tuple[str, ...]
    named: pa.Table
    unnamed: Sequence[Mapping[str, list[Any]]]
    replies: pa.Table | None
    dropped_reply: int
    database_ids: tuple[bytes, ...]
    fields: tuple[str, ...]
    by_kind: frozenset[str]
    candidates_max: int
    reads_names: tuple[int, ...]
    own_addresses: tuple[str, ...]
    expected_databases: str
    why_incomplete: str | None
    decided_at: int
    valid_until: int | None
    _keys: list[ArrowColumn] = field(default_factory=list, compare=False, repr=False)

    def is_valid_at(self, now: datetime) -> bool:
        """Returns whether the decisions are valid at a time."""
        now_us = epoch_microseconds(now)
        return self.decided_at <= now_us and (self.valid_until is None or now_us < self.valid_until)

    @property
    def listed_ids_max(self) -> int:
        """The maximum number of broker ids listed for one service name."""
        return pc.max(pc.list_value_length(self.named["ids"])).as_py() or 0

    def with_keys(self, keys_of: Callable[[pa.Table], Sequence[int]]) -> pa.Table:
        """Returns `named` with a column `key`, computed from `source` and `name` only once; otherwise, Spark would compute it for every query."""
        if not self._keys:
            self._keys.append(pa.array(keys_of(self.named.select(["source", "name"])), pa.int64()))
        return self.named.append_column("key", self._keys[0])

    @classmethod
    def of(cls, router: Router, labels: Labels, *, now: datetime) -> DecisionJoinTable:
        """Returns the decision table of a router at a time."""
        catalog = router.catalog
        databases = tuple(str(name) for name in catalog.databases["name"].to_pylist())
        ids = tuple(value for value in catalog.databases["service_broker_guid"].to_pylist() if value is not None)
        table = _coded_decisions(router, labels, databases, now)
        decided = table.filter(pc.invert(table["is_reply"]))
        is_named = pc.is_valid(decided["to_service_name"])
        named, unnamed = decided.filter(is_named), decided.filter(pc.invert(is_named))
        open_sources: list[Any] = unnamed.filter(pc.is_null(unnamed["decision_code"]))["source"].to_pylist()
        reads_names = tuple(sorted(set(open_sources)))
        forms = [unnamed]
        if reads_names:
            named, forms = _Completion(router, labels, databases, now).completed(named, unnamed)
        decided = pa.concat_tables([_with_form(named, 0), *map(_with_form, forms, range(len(forms)))])
        shared = _with_equal_shares(decided)
        why_incomplete = None
        if decided["decision_code"].null_count:
            why_incomplete = "a route for all services has the address TRANSPORT and a mirror address"
        elif shared is None:
            why_incomplete = "a tie has too many candidates for a join"
        decided = decided if shared is None else shared
        fields = tuple(name for name in ("only_from_initiator", *DETAILS) if _has_values(decided[name]))
        rows, by_kind, candidates_max = _group_rows(decided, [name for name in fields if name in DETAILS])
        is_named = pc.is_valid(rows["name"])
        replies = table.filter(table["is_reply"])
        is_dropped = pc.is_null(replies["to_service_name"])
        dropped: list[Any] = replies.filter(is_dropped)["decision_code"].unique().to_pylist()
        return cls(
            databases=databases,
            named=_without_single_choices(_with_shared_labels(rows.filter(is_named)).drop_columns(["form"])),
            unnamed=_joined_forms(rows.filter(pc.invert(is_named))),
            replies=_reply_rows(replies.filter(pc.invert(is_dropped))) if ids else None,
            dropped_reply=dropped[0] if dropped else 0,
            database_ids=ids,
            fields=fields,
            by_kind=by_kind,
            candidates_max=candidates_max,
            reads_names=reads_names,
            own_addresses=catalog.addresses,
            expected_databases=_expected_databases(router, now),
            why_incomplete=why_incomplete,
            decided_at=epoch_microseconds(now),
            valid_until=_first_expiry(table, decided),
        )


def _coded_decisions(router: Router, labels: Labels, databases: Sequence[str], now: datetime) -> pa.Table:
    """Returns a decision table with the source index and the decision code of each row."""
    decisions = router.decision_table(now=now)
    sources = pa.array([*databases, None], pa.string())
    table: pa.Table = pa.Table.from_batches([decisions])
    table = table.append_column("source", pc.index_in(table["database"], value_set=sources))
    return table.append_column("decision_code", labels.codes(decisions))


def _with_form(table: pa.Table, form: int) -> pa.Table:
    return table.append_column("form", pa.array([form] * table.num_rows, pa.int32()))


def _first_expiry(*tables: pa.Table) -> int | None:
    """Returns the earliest time at which a row of the tables expires; None if no row expires."""
    found = [pc.min(table["valid_until"].cast(pa.int64())).as_py() for table in tables]
    return min((until for until in found if until is not None), default=None)


@dataclass(frozen=True)
class _Completion:
    """Completes decisions that depend on the address at the start of a name, because of a route for all services with the address TRANSPORT.

    A row without a decision means that no other route is usable. This route then acts like a route to the address in the name.
    """

    router: Router
    labels: Labels
    databases: Sequence[str]
    now: datetime

    def completed(self, named: pa.Table, unnamed: pa.Table) -> tuple[pa.Table, list[pa.Table]]:
        """Returns the decisions for the listed names and, for each form of names, the decisions for all other names.

        The forms are: names that start with an address of another instance, with no address, or with an address of this instance.
        """
        own = self.router.catalog.addresses
        other, loop = (self._with_hop(address) for address in (_PLACEHOLDER, own[0] if own else _PLACEHOLDER))
        sources: ArrowColumn = unnamed.filter(pc.is_null(unnamed["decision_code"]))["source"].combine_chunks()
        is_open = pc.is_in(unnamed["source"], value_set=sources)
        kept, opened = unnamed.filter(pc.invert(is_open)), unnamed.filter(is_open)
        forms = [_of_other_names(other, sources), self._without_hop(opened), _of_other_names(loop, sources)]
        return self._completed_names(named, other, loop), [
            _in_table_order(pa.concat_tables([kept, form])) for form in forms
        ]

    def _completed_names(self, named: pa.Table, other: pa.Table, loop: pa.Table) -> pa.Table:
        keys = _keys_of_groups(named)
        open_keys = keys.filter(combined(pc.is_null(named["decision_code"]))).unique()
        is_open = pc.is_in(keys, value_set=open_keys)
        hops = self._hops_in(named["to_service_name"])
        is_own = pc.is_in(hops, value_set=pa.array(self.router.catalog.addresses, pa.string()))
        has_none = pc.is_null(hops)
        found = [named.filter(pc.invert(is_open)), self._without_hop(named.filter(pc.and_(is_open, has_none)))]
        for table, is_form in ((other, pc.and_(pc.invert(is_own), pc.invert(has_none))), (loop, is_own)):
            wanted = keys.filter(combined(pc.and_(is_open, is_form))).unique()
            chosen = table.filter(pc.is_in(_keys_of_groups(table), value_set=wanted))
            in_name = pc.equal(pc.fill_null(chosen["next_hop_address"], "-"), IN_NAME)
            hop = pc.if_else(in_name, self._hops_in(chosen["to_service_name"]), chosen["next_hop_address"])
            found.append(with_column(chosen, "next_hop_address", hop))
        return _in_table_order(pa.concat_tables(found))

    def _with_hop(self, address: str) -> pa.Table:
        """Returns the decisions for names that start with `address`; as a next hop, the address is replaced by `IN_NAME`."""
        catalog = self.router.catalog
        routes: Any = catalog.routes
        is_any_service = pc.and_(pc.is_null(routes["remote_service_name"]), pc.is_null(routes["mirror_address"]))
        is_in_name = pc.and_(is_any_service, pc.equal(pc.utf8_upper(routes["address"]), "TRANSPORT"))
        with_address = with_column(routes, "address", pc.if_else(is_in_name, address, routes["address"]))
        router = Router(
            catalog.replace(routes=with_address),
            tie_break=self.router.tie_break,
            pending_request=self.router.pending_request,
        )
        table = _coded_decisions(router, self.labels, self.databases, self.now)
        hops = table["next_hop_address"]
        hops = pc.if_else(pc.fill_null(pc.equal(hops, address), fill_value=False), IN_NAME, hops)
        return with_column(table, "next_hop_address", hops).filter(pc.invert(table["is_reply"]))

    def _without_hop(self, rows: pa.Table) -> pa.Table:
        """Completes rows without a decision (open rows) with the decisions for names that do not start with an address."""
        is_open = pc.is_null(rows["decision_code"])
        known, opened = rows.filter(pc.invert(is_open)), rows.filter(is_open)
        other_id, no_id = pa.scalar(_OTHER_ID, pa.binary(16)), pa.scalar(None, pa.binary(16))
        unlisted = pc.if_else(opened["has_broker_instance"], other_id, no_id)
        asked = {
            "conversation_id": _ids_with_hashes(opened),
            "database": opened["database"],
            "to_service_name": pc.fill_null(opened["to_service_name"], _NO_ADDRESS),
            "to_broker_instance": pc.coalesce(opened["to_broker_instance"], unlisted),
        }
        batch = pa.RecordBatch.from_pydict({name: combined(each) for name, each in asked.items()})
        decided: Any = self.router.route(batch, now=self.now)
        for name in DECISIONS.names:
            values = decided[name]
            opened = with_column(opened, name, values.dictionary_decode() if name in _DICTIONARIES else values)
        bound = pc.if_else(opened["has_broker_instance"], no_id, opened["broker_instance"])
        opened = with_column(opened, "broker_instance", bound)
        return pa.concat_tables([known, with_column(opened, "decision_code", self.labels.codes(decided))])

    def _hops_in(self, names: ArrowColumn) -> ArrowColumn:
        """Returns the address at the start of each name; null if there is none."""
        routes = {
            "name": ["r"],
            "remote_service_name": pa.nulls(1, pa.string()),
            "broker_instance": pa.nulls(1, pa.binary(16)),
        }
        routes |= {
            "lifetime": pa.nulls(1, pa.timestamp("us")),
            "address": ["TRANSPORT"],
            "mirror_address": pa.nulls(1, pa.string()),
        }
        router = Router(Catalog(pa.table(routes)), tie_break="first")
        decided: Any = router.route(pa.RecordBatch.from_pydict({"to_service_name": combined(names)}), now=self.now)
        return decided["next_hop_address"].dictionary_decode()


def _of_other_names(table: pa.Table, sources: ArrowColumn) -> pa.Table:
    return table.filter(pc.and_(pc.is_null(table["to_service_name"]), pc.is_in(table["source"], value_set=sources)))


def _keys_of_groups(table: pa.Table) -> ArrowColumn:
    """Returns a text for each row, which is equal for rows with the same source and name; null for rows without a name."""
    return combined(pc.binary_join_element_wise(table["source"].cast(pa.string()), table["to_service_name"], " "))


def _in_table_order(table: pa.Table) -> pa.Table:
    """Sorts the rows as the decision table is sorted."""
    is_listed = pc.is_valid(table["to_broker_instance"])
    order = ("source", "to_service_name", "has_broker_instance", "is_listed", "to_broker_instance", "hash_from")
    ordered = table.append_column("is_listed", is_listed).sort_by([(name, "ascending") for name in order])
    return ordered.drop_columns(["is_listed"])


def _ids_with_hashes(rows: pa.Table) -> ArrowColumn:
    """Returns, for each row, a conversation id whose hash picks the row."""
    ids = [number.to_bytes(16, "big") for number in range(_IDS_TRIED)]
    hashes: list[Any] = tie_break_hash(pa.array(ids, pa.binary(16))).to_pylist()
    limits: list[Any] = rows.select(["hash_from", "hash_to"]).to_pylist()
    found = [
        next((id_ for id_, value in zip(ids, hashes, strict=True) if row["hash_from"] <= value <= row["hash_to"]), None)
        for row in limits
    ]
    return pa.array(found, pa.binary(16))


def _with_equal_shares(decided: pa.Table) -> pa.Table | None:
    """Repeats candidates so that each row of a kind is picked by an equal share of the hashes; None if there would be too many rows."""
    first_hashes: list[Any] = decided["hash_from"].to_pylist()
    if all(first_hash == _LOWEST_HASH for first_hash in first_hashes):
        return decided
    kinds = [row for row, first_hash in enumerate(first_hashes) if first_hash == _LOWEST_HASH]
    rows: list[int] = []
    for start, end in pairwise([*kinds, len(first_hashes)]):
        shares = shares_of(tuple(first_hashes[start:end]))
        if shares is None:
            return None
        rows.extend(row for row, share in zip(range(start, end), shares, strict=True) for _ in range(share))
    return decided.take(rows) if len(rows) > decided.num_rows else decided


@cache
def shares_of(first_hashes: tuple[int, ...]) -> tuple[int, ...] | None:
    """Returns the number of equal shares of the hashes for each candidate; None if there would be too many shares."""
    limits = [first_hash - _LOWEST_HASH for first_hash in first_hashes] + [_HASHES]
    count = lcm(*(Fraction(limit, _HASHES).limit_denominator(CANDIDATES_MAX).denominator for limit in limits))
    places = [limit * count // _HASHES for limit in limits]
    if count > CANDIDATES_MAX or any(
        -(-place * _HASHES // count) != limit for place, limit in zip(places, limits, strict=True)
    ):
        return None
    return tuple(after - before for before, after in pairwise(places))


def _group_rows(decided: pa.Table, details: Sequence[str]) -> tuple[pa.Table, frozenset[str], int]:
    """Groups the sorted rows of decision tables by source, name and form.

    Returns the groups, the fields that are the same for all candidates of a kind, and the maximum number of candidates of one decision.
    """
    group_keys = ["source", "to_service_name", "form"]
    kinds = _run_starts(decided, [*group_keys, "has_broker_instance", "to_broker_instance"])
    groups = _run_starts(decided, group_keys)
    offsets = pa.concat_arrays([groups, pa.array([decided.num_rows], groups.type)])
    kind_offsets: ArrowColumn = pc.fill_null(pc.index_in(offsets, value_set=kinds), len(kinds))
    group_of_kind = pc.subtract(_number_of_run(len(kinds), kind_offsets), 1)
    first = pc.subtract(kinds, groups.take(group_of_kind))
    ids = decided["to_broker_instance"].combine_chunks().take(kinds).drop_null().cast(pa.binary())
    # Each group starts with the two kinds that have no listed id.
    id_offsets = pc.subtract(kind_offsets, pc.multiply(pa.array(range(len(offsets)), pa.int32()), KINDS))
    sizes = pc.subtract(pa.concat_arrays([kinds[1:], offsets[-1:]]), kinds)
    choice = pc.add(pc.shift_left(first.cast(pa.int64()), CANDIDATES_BITS), sizes.cast(pa.int64()))
    lists = {
        "ids": compat.list_array(id_offsets, ids),
        "choice": compat.list_array(kind_offsets, choice),
    }
    fields = {"decision_code": ["decision_code"], "only_from_initiator": ["only_from_initiator"], "details": details}
    by_kind = frozenset(
        name for name, read in fields.items() if all(_is_same_in_runs(decided[each], kinds) for each in read)
    )
    values = {name: decided[name].combine_chunks() for name in ("decision_code", "only_from_initiator", *details)}
    if "broker_instance" in details:
        values["broker_instance"] = values["broker_instance"].cast(pa.binary())
    structs = [values.pop(name) for name in details]
    values["details"] = pa.StructArray.from_arrays(structs, [*details]) if details else pa.nulls(decided.num_rows)
    for name, array in values.items():
        of_each, starts = (array.take(kinds), kind_offsets) if name in by_kind else (array, offsets)
        lists[name] = compat.list_array(starts, of_each)
    keys = {"source": "source", "name": "to_service_name", "form": "form"}
    taken = {name: decided[column].take(groups) for name, column in keys.items()}
    return pa.table({**taken, **lists}), by_kind, pc.max(sizes).as_py() or 0


def _is_same_in_runs(column: ArrowColumn, starts: ArrowColumn) -> bool:
    """Returns whether all values of each run are the same."""
    differs = pc.indices_nonzero(_differs_from_previous(column)).cast(pa.int32())
    return bool(pc.all(pc.is_in(pc.add(differs, pa.scalar(1, pa.int32())), value_set=starts)).as_py())


def _with_shared_labels(named: pa.Table) -> pa.Table:
    """Adds the codes of outcome and reason to rows whose decisions all share the same code."""
    decision_codes: ArrowColumn = named["decision_code"].combine_chunks()
    rows, values = pc.list_parent_indices(decision_codes), pc.list_flatten(decision_codes).cast(pa.int32())
    for name, (shift, mask) in LABEL_BITS.items():
        codes = pc.bit_wise_and(pc.shift_right(values, shift), mask)
        grouped: Any = pa.table({"row": rows, "code": codes}).group_by("row", use_threads=False)
        limits = grouped.aggregate([("code", "min"), ("code", "max")]).sort_by("row")
        is_shared = pc.equal(limits["code_min"], limits["code_max"])
        shared = pc.if_else(is_shared, limits["code_min"], pa.scalar(None, pa.int32())).cast(pa.int8())
        named = named.append_column(name, shared)
    return named


def _without_single_choices(named: pa.Table) -> pa.Table:
    """Returns rows whose `choice` is null if each kind has one candidate."""
    choices: ArrowColumn = named["choice"].combine_chunks()
    sizes = pc.bit_wise_and(pc.list_flatten(choices), CANDIDATES_MAX)
    rows_with_ties = pc.list_parent_indices(choices).filter(pc.greater(sizes, 1))
    has_ties = pc.is_in(pa.array(range(len(choices)), pa.int64()), value_set=rows_with_ties.cast(pa.int64()))
    return with_column(named, "choice", pc.if_else(has_ties, choices, pa.scalar(None, choices.type)))


def _joined_forms(rows: pa.Table) -> list[dict[str, list[Any]]]:
    """Joins, for each source, the arrays of the forms of names, in the order of the sources."""
    joined: dict[int, dict[str, list[Any]]] = {}
    for row in rows.sort_by([("source", "ascending"), ("form", "ascending")]).to_pylist():
        arrays = joined.setdefault(row["source"], {name: [] for name in ("ids", "choice", *_LISTED)})
        before = sum(choice & CANDIDATES_MAX for choice in arrays["choice"])
        row["choice"] = [choice + (before << CANDIDATES_BITS) for choice in row["choice"]]
        for name, array in arrays.items():
            array.extend(row[name])
    return list(joined.values())


def _has_values(column: ArrowColumn) -> bool:
    """Returns whether any value of the column is neither null nor false."""
    return bool(pc.any(column).as_py()) if pa.types.is_boolean(column.type) else column.null_count < len(column)


def _reply_rows(replies: pa.Table) -> pa.Table:
    groups = _run_starts(replies, ["to_service_name"])
    offsets = pa.concat_arrays([groups, pa.array([replies.num_rows], groups.type)])
    ids = replies["to_broker_instance"].combine_chunks().cast(pa.binary())
    lists = {"ids": compat.list_array(offsets, ids)}
    for name in ("decision_code", "target_database"):
        lists[name] = compat.list_array(offsets, replies[name].combine_chunks())
    return pa.table({"name": replies["to_service_name"].take(groups), **lists})


def _run_starts(table: pa.Table, keys: Sequence[str]) -> ArrowColumn:
    """Returns the index of each row that differs from the previous row in one of the columns."""
    if table.num_rows == 0:
        return pa.array([], pa.int32())
    differs = pa.concat_arrays(
        [pa.array([True]), reduce(pc.or_, (_differs_from_previous(table[name]) for name in keys))]
    )
    return pc.indices_nonzero(differs).cast(pa.int32())


def _differs_from_previous(column: ArrowColumn) -> ArrowColumn:
    """Returns, for each value except the first, whether it differs from the previous value."""
    numbers: ArrowColumn = column.combine_chunks().dictionary_encode().indices.fill_null(-1)
    return pc.not_equal(numbers[1:], numbers[:-1])


def _number_of_run(length: int, offsets: ArrowColumn) -> ArrowColumn:
    """Returns, for each index below `length`, the number of offsets at or before it."""
    is_start = pc.is_in(pa.array(range(length), pa.int32()), value_set=offsets)
    return pc.cumulative_sum(is_start.cast(pa.int32()))


def _expected_databases(router: Router, now: datetime) -> str:
    """Returns the expected databases from the router's error about an unknown database."""
    row = {"conversation_id": [bytes(16)], "to_service_name": [""], "database": ["\0"]}
    try:
        router.route(pa.table(row), now=now)
    except UnknownDatabaseError as error:
        return str(error.expected)
    return "a database"
