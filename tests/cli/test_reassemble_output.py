"""The outputs of `ssbroker reassemble`: replaced only together; bad input and wrong use; bounded memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ssbroker
from ssbroker import _csv
from ssbroker.cli import chunks, readers
from ssbroker.cli.output_paths import replacing_files
from ssbroker.exceptions import OutputError
from tests.cli.conftest import Run
from tests.cli.formats import SUFFIXES, read, write
from tests.cli.fragments import (
    CONVERSATIONS,
    TABLES,
    damaged_fragments,
    expected_tables,
    messages,
    shuffled,
    with_text_ids,
)

OLD = "old content"
STATE = "pending.bin"


@pytest.fixture
def input_file(tmp_path: Path) -> Path:
    return write(damaged_fragments(60), tmp_path / "in.parquet")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with all outputs of an earlier run."""
    folder = tmp_path / "result"
    folder.mkdir()
    for name in TABLES:
        (folder / f"{name}.csv").write_text(OLD)
    (folder / STATE).write_bytes(ssbroker.Reassembler().checkpoint())
    return folder


def output_options(folder: Path) -> list[object]:
    tables = [word for name in TABLES[1:] for word in (f"--{name}", folder / f"{name}.csv")]
    return ["-o", folder / f"{TABLES[0]}.csv", *tables, "--state", folder / STATE]


def untouched(folder: Path) -> bool:
    old = [(folder / f"{name}.csv").read_text() == OLD for name in TABLES]
    state = (folder / STATE).read_bytes() == ssbroker.Reassembler().checkpoint()
    return all(old) and state and len(list(folder.iterdir())) == len(TABLES) + 1


def refused(run: Run, folder: Path, *options: object) -> str:
    """Runs a command that must be refused; returns the error message."""
    result = run("reassemble", *options, *output_options(folder))
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith("ssbroker: ")
    assert result.err.count("\n") == 1
    assert untouched(folder)
    return result.err.removeprefix("ssbroker: ").rstrip("\n")


def test_all_outputs_are_replaced(run: Run, input_file: Path, folder: Path) -> None:
    assert run("reassemble", input_file, *output_options(folder)).status == 0
    assert sorted(entry.name for entry in folder.iterdir()) == sorted([*(f"{name}.csv" for name in TABLES), STATE])
    assert OLD not in {(folder / f"{name}.csv").read_text() for name in TABLES}
    assert ssbroker.Reassembler.restore((folder / STATE).read_bytes()).pending_messages > 0


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_invalid_value_is_reported_with_its_row_in_the_file(
    tmp_path: Path, run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.setattr(chunks, "CHUNK_ROWS", 20)
    monkeypatch.setattr(readers, "BLOCK_BYTES", 3_000)
    table = with_text_ids(damaged_fragments(60)).drop_columns(["note", "priority"])
    ids = table["conversation_id"].to_pylist()
    ids[120] = "no guid"
    bad = write(table.set_column(0, "conversation_id", pa.array(ids)), tmp_path / f"bad{suffix}")
    assert refused(run, folder, bad).startswith(f"{bad}: conversation_id, row 120: 'no guid' is not a valid GUID")


HEADER = "conversation_id,is_initiator,message_sequence_number,fragment_number,fragment_count,message_body"
GOOD = f"{CONVERSATIONS[0]},1,0,0,1,00"


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (
            GOOD.replace(",00", ",0"),
            "message_body, row 1: '0' is not valid; expected hexadecimal digits, such as 0x01ff",
        ),
        (GOOD.replace(",00", ",\\x00"), "message_body, row 1: '\\\\x00' is not valid; expected hexadecimal"),
        (GOOD.replace(",00", ","), "message_body, row 1: null is not allowed"),
        (
            GOOD.replace("1,0,0,1", "1,0,0,2147483648"),
            "fragment_count, row 1: '2147483648' is not valid; expected a 32-bit integer",
        ),
        (
            GOOD.replace("1,0,0,1", "1,0.5,0,1"),
            "message_sequence_number, row 1: '0.5' is not valid; expected a 64-bit integer",
        ),
        (GOOD.replace("1,0,0,1", "1,,0,1"), "message_sequence_number, row 1: null is not allowed"),
        (
            GOOD.replace("1,0,0,1", "maybe,0,0,1"),
            "is_initiator, row 1: 'maybe' is not valid; expected true, false, 1 or 0",
        ),
    ],
)
def test_invalid_csv_cell(tmp_path: Path, run: Run, folder: Path, line: str, wanted: str) -> None:
    (tmp_path / "in.csv").write_text(f"{HEADER}\n{GOOD}\n{line}\n")
    assert refused(run, folder, tmp_path / "in.csv").startswith(f"{tmp_path / 'in.csv'}: {wanted}")


@pytest.mark.parametrize(
    ("input_file", "changed", "wanted"),
    [
        ('"00"', '"0g"', "message_body, row 1: '0g' is not valid; expected hexadecimal digits"),
        ('"00"', "7", "message_body, row 1: 7 is not valid; expected a string"),
        ('"00"', "null", "message_body, row 1: null is not allowed"),
        (
            '"fragment_number": 0',
            '"fragment_number": "0"',
            'fragment_number, row 1: "0" is not valid; expected a 32-bit integer',
        ),
        (
            '"fragment_number": 0',
            '"fragment_number": true',
            "fragment_number, row 1: true is not valid; expected a 32-bit integer",
        ),
        (
            '"fragment_count": 1',
            '"fragment_count": 2147483648',
            "fragment_count, row 1: 2147483648 is not valid; expected a 32-bit integer",
        ),
        (
            '"fragment_count": 1',
            '"fragment_count": 1.5',
            "fragment_count, row 1: 1.5 is not valid; expected a 32-bit integer",
        ),
        ('"is_initiator": true', '"is_initiator": 1', "is_initiator, row 1: 1 is not valid; expected true or false"),
    ],
)
def test_invalid_json_value(tmp_path: Path, run: Run, folder: Path, input_file: str, changed: str, wanted: str) -> None:
    names, values = HEADER.split(","), [f'"{CONVERSATIONS[0]}"', "true", "0", "0", "1", '"00"']
    line = ", ".join(f'"{name}": {value}' for name, value in zip(names, values, strict=True))
    assert input_file in line
    (tmp_path / "in.jsonl").write_text(f"{{{line}}}\n{{{line.replace(input_file, changed)}}}\n")
    assert refused(run, folder, tmp_path / "in.jsonl").startswith(f"{tmp_path / 'in.jsonl'}: {wanted}")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_missing_column(tmp_path: Path, run: Run, folder: Path, suffix: str) -> None:
    input_file = write(damaged_fragments(20).drop_columns(["fragment_count"]), tmp_path / f"in{suffix}")
    assert refused(run, folder, input_file).startswith(f"{input_file}: fragment_count: the column is missing")


@pytest.mark.parametrize("share", [0.0, 0.2, 0.9, 0.999])
def test_truncated_file(input_file: Path, run: Run, folder: Path, share: float) -> None:
    input_file.write_bytes(input_file.read_bytes()[: int(input_file.stat().st_size * share)])
    assert refused(run, folder, input_file).startswith(f"{input_file}: ")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("conversation_id\n", "keys.csv: session_key: the column is missing"),
        ("session_key\n", "keys.csv: conversation_id: the column is missing"),
        (
            f"conversation_id,session_key\n{uuid.UUID(int=1)},0011\n",
            "keys.csv: session_key, row 0: expected a key of 16, 24",
        ),
        (
            f"conversation_id,session_key\n{uuid.UUID(int=1)},\n",
            "keys.csv: session_key, row 0: expected a key of 16, 24",
        ),
        (
            f"conversation_id,session_key\n12,{'00' * 16}\n",
            "keys.csv: row 0: conversation_id: '12' is not a valid GUID",
        ),
        (
            f"conversation_id,session_key\n{uuid.UUID(int=1)},{'00' * 16}\n{uuid.UUID(int=1)},{'01' * 16}\n",
            f"keys.csv: row 1: an earlier row contains a different key for the conversation {uuid.UUID(int=1)}; keep only the row with the correct key",
        ),
    ],
)
def test_invalid_session_keys_are_reported_without_the_key(
    input_file: Path, run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, wanted: str
) -> None:
    monkeypatch.chdir(folder.parent)
    Path("keys.csv").write_text(text)
    message = refused(run, folder, input_file, "--session-keys", "keys.csv")
    assert message.startswith(wanted)
    assert "00" not in message.replace("00000000-0000-0000-0000-000000000001", "")


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (
            ["--session-keys", "a", "--session-key-column", "b"],
            "--session-keys and --session-key-column cannot be used together: specify one of them",
        ),
        (["--session-key-column", "nothing"], "in.parquet: nothing: the column is missing"),
        (
            ["--max-pending-bytes", "many"],
            "--max-pending-bytes: 'many' is not a valid size; expected a size such as 256MiB, or 'none' for no limit",
        ),
        (
            ["--max-pending-messages", "1e6"],
            "--max-pending-messages: '1e6' is not a valid number; expected a number such as 1000000",
        ),
        (["--max-pending-bytes", "9" * 5000], "--max-pending-bytes: '999"),
        (["--max-pending-messages", "9" * 5000], "--max-pending-messages: '999"),
        (
            ["--max-message-bytes", "none"],
            "--max-message-bytes: 'none' is not a valid size; expected a size such as 256MiB\n",
        ),
        (
            ["--max-message-bytes", "2GiB"],
            "ssbroker: --max-message-bytes: expected an integer from 1 to 2147483647, got 2147483648",
        ),
    ],
)
def test_invalid_options(input_file: Path, run: Run, folder: Path, options: list[str], wanted: str) -> None:
    (folder / STATE).unlink()
    result = run("reassemble", input_file, "-o", folder / "messages.csv", *options)
    assert (result.status, result.out) == (2, "")
    assert wanted in result.err
    assert result.err.count("\n") == 1
    assert (folder / "messages.csv").read_text() == OLD


def test_limits_cannot_be_combined_with_a_state(input_file: Path, run: Run, folder: Path) -> None:
    message = refused(run, folder, input_file, "--any-order", "--max-pending-bytes", "1GiB")
    assert (
        message
        == f"{folder / STATE}: the state keeps the limits and order of its first run; remove --max-pending-bytes, --any-order"
    )


@pytest.mark.parametrize("damage", ["cut off", "altered", "empty"])
def test_damaged_state(input_file: Path, run: Run, folder: Path, damage: str) -> None:
    state = folder / STATE
    good = state.read_bytes()
    state.write_bytes({"cut off": good[:-1], "altered": good[:-1] + bytes([good[-1] ^ 1]), "empty": b""}[damage])
    bad = state.read_bytes()
    result = run("reassemble", input_file, *output_options(folder))
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith(f"ssbroker: {state}: state: ")
    assert result.err.count("\n") == 1
    assert state.read_bytes() == bad


def test_output_cannot_be_an_input_or_another_output(input_file: Path, run: Run, folder: Path) -> None:
    before = input_file.read_bytes()
    keys = write(pa.table({"conversation_id": [bytes(16)], "session_key": [bytes(16)]}), folder.parent / "keys.parquet")
    output, link = folder / "messages.csv", folder.parent / "link.csv"
    link.symlink_to(output)
    for options, wanted in (
        (["--state", input_file], f"{input_file}: cannot be written: it is also an input ({input_file})"),
        (["--session-keys", keys, "--rejected", keys], f"{keys}: cannot be written: it is also an input ({keys})"),
        (["--rejected", output], f"{output}: cannot be written: it is specified for two outputs"),
        (["--state", link], f"{link}: cannot be written: it is specified for two outputs"),
    ):
        result = run("reassemble", input_file, "-o", output, *options)
        assert (result.status, result.err) == (2, f"ssbroker: {wanted}\n")
    assert (input_file.read_bytes(), output.read_text()) == (before, OLD)


def test_output_is_checked_before_input_is_read(run: Run, input_file: Path, folder: Path) -> None:
    input_file.write_text("no Parquet")
    for option in ("--rejected", "--state"):
        nowhere = folder / "no" / "out.csv"
        result = run("reassemble", input_file, "-o", folder / "messages.csv", option, nowhere)
        assert (result.status, result.err) == (
            2,
            f"ssbroker: {nowhere}: cannot be written: No such file or directory\n",
        )
    assert untouched(folder)


def test_files_are_moved_in_order_when_all_are_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state is last: until then a run can be repeated."""
    places = [tmp_path / name for name in ("messages", "rejected", "state")]
    moved: list[str] = []
    replace = Path.replace

    def move(part: Path, target: Path) -> Path:
        if target.name == "state":
            raise OSError(5, "broken")
        moved.append(target.name)
        return replace(part, target)

    monkeypatch.setattr(Path, "replace", move)
    with pytest.raises(OutputError, match="state: cannot be written: broken"), replacing_files(places) as parts:
        for part in parts:
            part.write_text("new")
        assert moved == []
    assert moved == ["messages", "rejected"]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["messages", "rejected"]


def test_full_disk_keeps_the_old_files(tmp_path: Path, run: Run, folder: Path) -> None:
    table = ssbroker.fragment(messages(400, body_bytes=4000), max_fragment_bytes=1000)
    input_file = write(table, tmp_path / "in.parquet")
    words = " ".join(str(word) for word in output_options(folder))
    limit = f"ulimit -f 64; exec {sys.executable} -m ssbroker reassemble {input_file} {words}"
    done = subprocess.run(["/bin/sh", "-c", limit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"ssbroker: {folder / 'messages.csv'}: cannot be written: File too large\n"
    assert untouched(folder)


# Sends the signal to the process when a chunk has been reassembled.
INTERRUPTED = """
import os, sys
from ssbroker.cli import main, reassemble_files
write = reassemble_files._write
reassemble_files._write = lambda *given: (os.kill(os.getpid(), int(sys.argv[1])), write(*given))
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_keeps_the_old_files(input_file: Path, folder: Path, number: signal.Signals) -> None:
    words = map(str, ["reassemble", input_file, *output_options(folder)])
    command = [sys.executable, "-c", INTERRUPTED, str(int(number)), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "ssbroker: interrupted; nothing was written\n")
    assert untouched(folder)


def test_row_longer_than_a_block(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_csv, "_BLOCK_BYTES", 500)
    monkeypatch.setattr(readers, "BLOCK_BYTES", 500)
    table = shuffled(ssbroker.fragment(messages(30, body_bytes=3000), max_fragment_bytes=2000)).drop_columns(
        ["priority"]
    )
    for suffix in (".csv", ".jsonl"):
        input_file = write(table.drop_columns(["note"]), tmp_path / f"in{suffix}")
        result = run("reassemble", input_file, "-o", tmp_path / "out.jsonl", "--json")
        assert json.loads(result.out)["rejected"]["rows"] == 0
        assert read(tmp_path / "out.jsonl") == expected_tables(table.drop_columns(["note"]))["messages"]


def test_row_longer_than_the_limit(tmp_path: Path, run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_csv, "_BLOCK_BYTES", 1000)
    monkeypatch.setattr(_csv, "_BLOCK_BYTES_MAX", 1 << 20)
    input_file = tmp_path / "in.csv"
    input_file.write_text(f"{HEADER}\n" + f"{GOOD}\n" * 100 + f'{CONVERSATIONS[0]},1,0,0,1,"' + "0" * (2 << 20))
    message = refused(run, folder, input_file)
    assert message.endswith(" or later: a row is longer than 1 MiB, or a quoted cell is not closed")


MEMORY_TEST_ROWS = 10_000
MEMORY_TEST_BODY = 50_000


@pytest.mark.rule("P26")
@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="the system does not report the peak memory of a process"
)
@pytest.mark.parametrize("are_complete", [True, False])
def test_memory_stays_bounded_when_a_file_is_larger(tmp_path: Path, *, are_complete: bool) -> None:
    """500 MB in one row group, of complete messages or of first fragments, with 16 MiB for pending messages.

    110 runs took 390 to 450 MB, one 483; with the whole file in memory it would be more than 650.
    """
    body = os.urandom(MEMORY_TEST_BODY)
    count = MEMORY_TEST_ROWS
    table = pa.table(
        {
            "conversation_id": pa.array([bytes(15) + bytes([row % 200]) for row in range(count)], pa.binary(16)),
            "is_initiator": [True] * count,
            "message_sequence_number": pa.array([row // 200 for row in range(count)], pa.int64()),
            "fragment_number": pa.array([0] * count, pa.int32()),
            "fragment_count": pa.array([1 if are_complete else 2] * count, pa.int32()),
            "message_body": pa.array([body]).take(pa.array([0] * count, pa.int32())),
        }
    )
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=count, use_dictionary=False)
    program = (
        "import pathlib, re, sys; from ssbroker.cli import main; status = main(sys.argv[1:]); "
        "print(status, re.search(r'VmHWM:\\s+(\\d+)', pathlib.Path('/proc/self/status').read_text())[1])"
    )
    words = [
        "reassemble",
        tmp_path / "in.parquet",
        "-o",
        tmp_path / "out.parquet",
        "--max-pending-bytes",
        "16MiB",
        "-q",
    ]
    command = [sys.executable, "-c", program, *map(str, words)]

    done = subprocess.run(command, capture_output=True, text=True, check=True)

    status, peak_kb = map(int, done.stdout.split())
    assert status == (0 if are_complete else 1)
    assert peak_kb < 540_000
    assert pq.ParquetFile(tmp_path / "out.parquet").metadata.num_rows == (count if are_complete else 0)
