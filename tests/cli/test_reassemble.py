"""`ssbroker reassemble`: formats, order, limits, session keys, and continuing from a state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import ssbroker
from ssbroker.cli import chunks, readers
from ssbroker.cli.reassemble_files import LatestAcknowledgements, memory_bytes
from tests.cli.conftest import Run
from tests.cli.formats import SUFFIXES, read, write
from tests.cli.fragments import (
    CONVERSATIONS,
    KEYS,
    TABLES,
    damaged_fragments,
    expected_tables,
    messages,
    rows_as_text,
    shuffled,
    with_text_ids,
)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes chunks small, so that a few dozen rows are many of them."""
    monkeypatch.setattr(chunks, "CHUNK_ROWS", 20)
    monkeypatch.setattr(readers, "BLOCK_BYTES", 3_000)


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the default limit independent of the machine."""
    monkeypatch.setattr("ssbroker.cli.reassemble_files.memory_bytes", lambda: 4 << 30)


def outputs(folder: Path, suffix: str) -> dict[str, Path]:
    return {name: folder / f"{name}{suffix}" for name in TABLES}


def options(written: dict[str, Path]) -> list[object]:
    return ["-o", written["messages"], *(word for name in TABLES[1:] for word in (f"--{name}", written[name]))]


@pytest.mark.rule("P11", "P12", "P14", "P18", "P21")
@pytest.mark.parametrize("output", SUFFIXES)
@pytest.mark.parametrize("source", SUFFIXES)
def test_every_input_and_output_format(tmp_path: Path, run: Run, source: str, output: str) -> None:
    table = damaged_fragments(60).drop_columns(["note"])
    if source == ".csv":  # all columns of CSV are text
        table = table.set_column(table.column_names.index("priority"), "priority", table["priority"].cast(pa.string()))
    given, written = write(table, tmp_path / f"in{source}"), outputs(tmp_path, output)

    result = run("reassemble", given, *options(written))

    assert (result.status, result.err) == (0, "")
    wanted = expected_tables(table)
    assert {row["reason"] for row in wanted["rejected"]} == {"duplicate", "corrupt_fragment", "conflict"}
    assert {row["waits_for_sequence_number"] is None for row in wanted["incomplete"]} == {True, False}
    for name in TABLES:
        assert with_text_priority(read(written[name])) == with_text_priority(wanted[name]), name


def with_text_priority(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the rows with the extra column `priority` as text, as in CSV."""
    return [{name: str(value) if name == "priority" else value for name, value in row.items()} for row in found]


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".arrows", ".jsonl"])
def test_extra_columns_are_those_of_the_first_fragment(tmp_path: Path, run: Run, suffix: str) -> None:
    table = damaged_fragments(60)
    given, written = write(table, tmp_path / f"in{suffix}"), outputs(tmp_path, suffix)
    assert run("reassemble", given, *options(written)).status == 0
    assert read(written["messages"]) == expected_tables(table)["messages"]
    assert list(read(written["messages"])[0])[-2:] == ["note", "priority"]


def test_hexadecimal_digits_with_and_without_prefix(tmp_path: Path, run: Run) -> None:
    header = "conversation_handle,is_initiator,message_sequence_number,fragment_number,fragment_count,message_body,message_signature"
    signature = "5D41402ABC4B2A76B9719D911017C592"
    lines = [
        f"{{{str(CONVERSATIONS[0]).upper()}}},1, 0 ,0,2,0X6865,{signature}",
        f"{CONVERSATIONS[0]},1,0,1,2,6c6C6f,NULL",
    ]
    (tmp_path / "in.csv").write_text("\n".join([header, *lines, lines[1].replace("NULL", f"0x{signature}")]))

    result = run("reassemble", tmp_path / "in.csv", "-o", tmp_path / "out.parquet", "--rejected", tmp_path / "no.jsonl")

    assert (result.status, result.err) == (0, "")
    assert pq.read_table(tmp_path / "out.parquet")["message_body"].to_pylist() == [b"hello"]
    assert [row["reason"] for row in read(tmp_path / "no.jsonl")] == ["conflict"]


def test_empty_input_without_signatures(tmp_path: Path, run: Run) -> None:
    table = damaged_fragments(20).drop_columns(["message_signature", "fragment_signature"])
    for suffix in SUFFIXES:
        given, written = write(table.slice(0, 0), tmp_path / f"in{suffix}"), outputs(tmp_path, suffix)
        result = run("reassemble", given, *options(written))
        assert (result.status, result.err) == (0, "")
        assert [read(path) for path in written.values()] == [[], [], [], []]
        assert result.out.startswith("0 acknowledgements, written to ")
        assert "\n0 messages (0 B) of 0 fragments reassembled in " in result.out


def test_files_are_read_in_the_order_given(tmp_path: Path, run: Run) -> None:
    """The order and layout of their columns may differ."""
    table = damaged_fragments(60)
    third = table.num_rows // 3
    other = table.slice(third, third).select(list(reversed(table.column_names)))
    other = other.set_column(1, "note", other["note"].cast(pa.large_string()).dictionary_encode())
    write(table.slice(0, third), tmp_path / "0.parquet")
    write(other, tmp_path / "1.arrow")
    write(table.slice(2 * third), tmp_path / "2.arrows")

    result = run("reassemble", tmp_path / "0.parquet", tmp_path / "[12].*", "-o", tmp_path / "out.jsonl")

    assert (result.status, result.err) == (0, "")
    assert read(tmp_path / "out.jsonl") == expected_tables(table)["messages"]


@pytest.mark.parametrize("is_reversed", [False, True])
def test_files_may_differ_in_nullability_and_fixed_sizes(tmp_path: Path, run: Run, *, is_reversed: bool) -> None:
    """Such are files of `fragment` and the same files written by Spark."""
    table = ssbroker.fragment(messages(20), max_fragment_bytes=64)
    plain = pa.schema(
        pa.field(field.name, pa.binary() if pa.types.is_fixed_size_binary(field.type) else field.type)
        for field in table.schema
    )
    half = table.num_rows // 2
    parts = [table.slice(0, half), table.slice(half).cast(plain)]
    files = [write(part, tmp_path / f"{number}.parquet") for number, part in enumerate(parts)]

    result = run("reassemble", *(reversed(files) if is_reversed else files), "-o", tmp_path / "out.parquet")

    assert (result.status, result.err) == (0, "")
    assert pq.read_table(tmp_path / "out.parquet").num_rows == 20


def test_integers_of_another_width(tmp_path: Path, run: Run) -> None:
    """Some tools write all integers with 64 bits."""
    table = shuffled(ssbroker.fragment(messages(20), max_fragment_bytes=64))
    wide = pa.table(
        {
            name: table[name].cast(pa.int64()) if pa.types.is_int32(table[name].type) else table[name]
            for name in table.column_names
        }
    )
    assert run("reassemble", write(wide, tmp_path / "in.parquet"), "-o", tmp_path / "out.parquet").status == 0
    assert pq.read_table(tmp_path / "out.parquet").num_rows == 20


def test_any_order(tmp_path: Path, run: Run) -> None:
    table = damaged_fragments(60)
    given = write(table, tmp_path / "in.parquet")
    assert run("reassemble", given, "-o", tmp_path / "out.parquet", "--any-order").status == 0
    found = read(tmp_path / "out.parquet")
    assert found == expected_tables(table, in_order=False)["messages"]
    assert len(found) > len(expected_tables(table)["messages"])


@pytest.mark.parametrize(
    ("option", "value", "argument"),
    [
        ("--max-pending-bytes", "2KiB", {"max_pending_bytes": 2048}),
        ("--max-pending-messages", "4", {"max_pending_messages": 4}),
        ("--max-message-bytes", "200 B", {"max_message_bytes": 200}),
        ("--max-fragments-per-message", "3", {"max_fragments_per_message": 3}),
        ("--max-sequence-distance", "2", {"max_sequence_distance": 2}),
    ],
)
def test_limit_options(tmp_path: Path, run: Run, option: str, value: str, argument: dict[str, Any]) -> None:
    table = damaged_fragments(60)
    given, written = write(table, tmp_path / "in.parquet"), outputs(tmp_path, ".parquet")

    result = run("reassemble", given, *options(written), option, value)

    reassembler = ssbroker.Reassembler(**argument)
    found = reassembler.push(table)
    assert read(written["messages"]) == rows_as_text(found.messages)
    assert read(written["rejected"]) == rows_as_text(found.rejected)
    assert "limit_exceeded" in {row["reason"] for row in rows_as_text(found.rejected)}
    default = "--max-pending-bytes (now 1.0 GiB) or "
    advice = f"{'' if option == '--max-pending-bytes' else default}{option} (now {value})"
    exceeded = sum(row["reason"] == "limit_exceeded" for row in rows_as_text(found.rejected))
    assert result.status == 1
    assert result.err == f"ssbroker: warning: {exceeded} fragments exceeded a limit; raise {advice}\n"
    quiet = run("reassemble", given, *options(written), option, value, "--quiet")
    assert (quiet.status, quiet.out, quiet.err) == (1, "", "")


def test_the_default_limit_is_a_share_of_the_memory(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A complete file of conversations with one message each, of which none is complete until the end."""
    sent = pa.table(
        {
            "conversation_id": pa.array([number.to_bytes(16) for number in range(1000)], pa.binary(16)),
            "is_initiator": [True] * 1000,
            "message_sequence_number": [0] * 1000,
            "message_body": [bytes(300)] * 1000,
        }
    )
    parts = ssbroker.fragment(sent, max_fragment_bytes=200)
    given = write(
        pa.concat_tables([parts.take(list(range(first, 2000, 2))) for first in (0, 1)]), tmp_path / "in.parquet"
    )
    arguments = ("reassemble", given, "-o", tmp_path / "out.parquet", "--json")

    monkeypatch.setattr("ssbroker.cli.reassemble_files._PENDING_BYTES_MIN", 1 << 16)
    monkeypatch.setattr("ssbroker.cli.reassemble_files.memory_bytes", lambda: 16 << 20)
    enough = run(*arguments)
    monkeypatch.setattr("ssbroker.cli.reassemble_files.memory_bytes", lambda: 1 << 20)
    too_small = run(*arguments)
    monkeypatch.setattr("ssbroker.cli.reassemble_files.memory_bytes", lambda: None)
    unknown = run(*arguments)

    assert [result.status for result in (enough, too_small, unknown)] == [0, 1, 1]
    assert json.loads(enough.out)["messages"]["rows"] == 1000
    assert too_small.err.endswith(" exceeded a limit; raise --max-pending-bytes (now 256.0 KiB)\n")
    assert unknown.err.endswith(" exceeded a limit; raise --max-pending-bytes (now 64.0 KiB)\n")


def test_only_the_memory_is_limited_by_default(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits of `Reassembler` are for endless streams."""
    made: list[dict[str, Any]] = []

    class Recorder(ssbroker.Reassembler):
        def __init__(self, **given: Any) -> None:
            made.append(given)
            super().__init__(**given)

    monkeypatch.setattr("ssbroker.cli.reassemble_files.Reassembler", Recorder)
    given = write(damaged_fragments(5), tmp_path / "in.parquet")
    run("reassemble", given, "-o", tmp_path / "out.parquet", "--max-sequence-distance", "9")
    assert made == [
        {
            "max_pending_bytes": 1 << 30,
            "max_pending_messages": None,
            "max_fragments_per_message": None,
            "max_sequence_distance": 9,
            "session_keys": None,
        }
    ]


def test_the_limit_of_a_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [tmp_path / name for name in ("memory.max", "memory.limit_in_bytes")]
    monkeypatch.setattr("ssbroker.cli.reassemble_files._CONTAINER_LIMITS", limits)
    whole = memory_bytes()
    limits[0].write_text("max\n")
    assert memory_bytes() == whole
    limits[1].write_text("4096\n")
    assert memory_bytes() == 4096


def test_limit_none(tmp_path: Path, run: Run) -> None:
    table = shuffled(ssbroker.fragment(messages(20), max_fragment_bytes=64))
    given = write(table, tmp_path / "in.parquet")
    none = [word for name in ("bytes", "messages") for word in (f"--max-pending-{name}", "none")]
    result = run(
        "reassemble", given, "-o", tmp_path / "out.parquet", *none, "--max-sequence-distance", "NONE", "--json"
    )
    assert json.loads(result.out)["rejected"]["rows"] == 0


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_session_keys_from_a_file(tmp_path: Path, run: Run, suffix: str) -> None:
    """Fragments that are signed with a key are corrupt without it."""
    table = damaged_fragments(60, session_keys=KEYS)
    given, written = write(table, tmp_path / "in.parquet"), outputs(tmp_path, ".parquet")
    ids = pa.array([id_.bytes for id_ in KEYS], pa.binary(16))
    keys = write(pa.table({"conversation_id": ids, "session_key": list(KEYS.values())}), tmp_path / f"keys{suffix}")

    assert run("reassemble", given, *options(written), "--session-keys", keys).status == 0

    wanted = expected_tables(table, session_keys=KEYS)
    assert {name: read(path) for name, path in written.items()} == wanted
    assert len(wanted["messages"]) > len(expected_tables(table)["messages"])


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_session_keys_from_a_column(tmp_path: Path, run: Run, suffix: str) -> None:
    """No output has the keys."""
    table = damaged_fragments(60, session_keys=KEYS).drop_columns(["note", "priority"])
    by_id: dict[Any, bytes] = {id_.bytes: key for id_, key in KEYS.items()}
    keys = pa.array([by_id.get(id_) for id_ in table["conversation_id"].to_pylist()], pa.binary())
    given = write(table.append_column("the_session_key", keys), tmp_path / f"in{suffix}")

    result = run("reassemble", given, "-o", tmp_path / "out.jsonl", "--session-key-column", "the_session_key")

    assert (result.status, result.err) == (0, "")
    assert read(tmp_path / "out.jsonl") == expected_tables(table, session_keys=KEYS)["messages"]


def test_ids_of_keys_and_fragments_with_different_spelling(tmp_path: Path, run: Run) -> None:
    given = write(with_text_ids(damaged_fragments(30, session_keys=KEYS)), tmp_path / "in.parquet")
    lines = [f"{{{str(id_).upper()}}},{key.hex()}\n" for id_, key in KEYS.items()]
    (tmp_path / "keys.csv").write_text("conversation_handle,session_key\n" + "".join(lines))
    result = run("reassemble", given, "-o", tmp_path / "out.jsonl", "--session-keys", tmp_path / "keys.csv")
    assert (result.status, result.err) == (0, "")
    assert (
        read(tmp_path / "out.jsonl")
        == expected_tables(damaged_fragments(30, session_keys=KEYS), session_keys=KEYS)["messages"]
    )


@pytest.mark.parametrize("column", [None, "key"])
def test_runs_with_a_state_equal_one_run(tmp_path: Path, run: Run, column: str | None) -> None:
    table = damaged_fragments(60, session_keys=KEYS)
    keys = pa.table({"conversation_id": [id_.bytes for id_ in KEYS], "session_key": list(KEYS.values())})
    by = ["--session-keys", write(keys, tmp_path / "keys.parquet")]
    if column is not None:
        by_id: dict[Any, bytes] = {id_.bytes: key for id_, key in KEYS.items()}
        of_rows = pa.array([by_id.get(id_) for id_ in table["conversation_id"].to_pylist()], pa.binary())
        table, by = table.append_column(column, of_rows), ["--session-key-column", column]
    state = tmp_path / "pending.bin"

    found: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
    for start in range(0, table.num_rows, 80):
        given, written = write(table.slice(start, 80), tmp_path / "in.parquet"), outputs(tmp_path, ".parquet")
        assert run("reassemble", given, *options(written), *by, "--state", state).status == 0
        for name in TABLES:
            found[name] = read(written[name]) if name == "incomplete" else found[name] + read(written[name])

    wanted = expected_tables(table, session_keys=column or KEYS)
    assert [found[name] for name in TABLES[:3]] == [wanted[name] for name in TABLES[:3]]
    restored = ssbroker.Reassembler.restore(state.read_bytes())
    assert restored.pending_messages == len(wanted["incomplete"]) > 0


def test_state_keeps_limits_and_order(tmp_path: Path, run: Run) -> None:
    table = damaged_fragments(60)
    given, state = write(table, tmp_path / "in.parquet"), tmp_path / "pending.bin"
    empty = write(table.slice(0, 0), tmp_path / "empty.parquet")
    files = ("-o", tmp_path / "out.parquet", "--rejected", tmp_path / "no.parquet", "--state", state)

    assert run("reassemble", empty, *files, "--any-order", "--max-fragments-per-message", "3").status == 0
    continued = run("reassemble", given, *files)
    assert continued.status == 1
    assert (
        f"{state} keeps the limits of its first run; start again without this file and with a larger" in continued.err
    )

    found = ssbroker.Reassembler(in_order=False, max_fragments_per_message=3).push(table)
    assert read(tmp_path / "out.parquet") == rows_as_text(found.messages)
    assert read(tmp_path / "no.parquet") == rows_as_text(found.rejected)


def test_outdated_partial_acknowledgement_is_removed(tmp_path: Path, run: Run) -> None:
    """One push acknowledges the first fragment; the next rejects the whole message."""
    table = ssbroker.fragment(messages(60), max_fragment_bytes=100)
    two = table.filter(pc.field("fragment_count") == pc.scalar(2)).slice(0, 2)
    forged = two.set_column(
        two.column_names.index("message_signature"), "message_signature", pa.array([bytes(16)] * 2, pa.binary(16))
    )
    first = forged.set_column(2, "message_sequence_number", pa.array([0, 0], pa.int64()))
    given = [write(first.slice(number, 1), tmp_path / f"{number}.parquet") for number in (0, 1)]
    written = outputs(tmp_path, ".jsonl")

    assert run("reassemble", *given, *options(written)).status == 0

    assert [row["reason"] for row in read(written["rejected"])] == ["corrupt_message"] * 2
    (acknowledgement,) = read(written["acknowledgements"])
    assert [acknowledgement[name] for name in list(acknowledgement)[2:]] == [None, None, None]


def test_acknowledgements_are_merged_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the latest of each direction is kept, in the order in which the directions appeared."""
    monkeypatch.setattr("ssbroker.cli.reassemble_files.UNMERGED_ROWS_MAX", 10)
    table = shuffled(ssbroker.fragment(messages(200), max_fragment_bytes=64))
    reassembler, acknowledged = ssbroker.Reassembler(), LatestAcknowledgements()
    for start in range(0, table.num_rows, 7):
        acknowledged.add(reassembler.push(table.slice(start, 7)).acknowledgements)
        assert sum(part.num_rows for part in acknowledged._unmerged) <= 10
    wanted = ssbroker.reassemble(table).acknowledgements
    assert acknowledged.table(pending=reassembler.pending()).to_pylist() == wanted.to_pylist()
