"""Replaces types in nested Arrow types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

_map: Final[Any] = pa.map_  # the stubs are incomplete


def replace_leaves(arrow_type: Any, replace: Callable[[Any], Any]) -> Any:
    """Returns a type with each leaf of structs, maps and lists replaced; any other type is a leaf.

    Examples:
        >>> replace_leaves(pa.list_(pa.int8()), lambda leaf: pa.string())
        ListType(list<item: string>)
    """

    def nested(field: Any) -> Any:
        return field.with_type(replace_leaves(field.type, replace))

    if pa.types.is_struct(arrow_type):
        return pa.struct([nested(field) for field in arrow_type])
    if pa.types.is_map(arrow_type):
        key, item = nested(arrow_type.key_field), nested(arrow_type.item_field)
        return _map(key, item, keys_sorted=arrow_type.keys_sorted)
    if pa.types.is_list(arrow_type):
        return pa.list_(nested(arrow_type.value_field))
    if pa.types.is_large_list(arrow_type):
        return pa.large_list(nested(arrow_type.value_field))
    if pa.types.is_fixed_size_list(arrow_type):
        return pa.list_(nested(arrow_type.value_field), arrow_type.list_size)
    return replace(arrow_type)


def without_dictionaries(schema: pa.Schema) -> pa.Schema:
    """Returns a schema with each dictionary type, also in structs, maps and lists, replaced by the type of its values.

    Examples:
        >>> without_dictionaries(pa.schema({"a": pa.list_(pa.dictionary(pa.int8(), pa.string()))})).field("a").type
        ListType(list<item: string>)
    """

    def values_of(leaf: Any) -> Any:
        return leaf.value_type if pa.types.is_dictionary(leaf) else leaf

    return pa.schema([field.with_type(replace_leaves(field.type, values_of)) for field in schema])
