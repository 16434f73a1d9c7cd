"""Outputs are replaced only when they are complete, and never overwrite inputs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from ssbroker import Instance
from ssbroker.cli.output_paths import refuse_overwriting, replacing_files, replacing_folder
from ssbroker.cli.terminal import ProgressBar
from ssbroker.exceptions import OutputError
from tests.cli.conftest import Run, conversations
from tests.cli.formats import SUFFIXES, write

COMMAND = [sys.executable, "-m", "ssbroker", "route"]


@pytest.fixture
def input_file(tmp_path: Path) -> Path:
    return write(conversations(20_000), tmp_path / "in.parquet")


def test_existing_file_is_replaced_and_keeps_its_mode(
    tmp_path: Path, catalog: Path, input_file: Path, run: Run
) -> None:
    output = tmp_path / "result" / "out.csv"
    output.parent.mkdir()
    output.write_text("old")
    output.chmod(0o640)

    assert run("route", catalog, "--conversations", input_file, "-o", output).status == 0

    assert output.stat().st_size > 1000
    assert output.stat().st_mode & 0o777 == 0o640
    assert list(output.parent.iterdir()) == [output]


def test_output_link_is_kept(tmp_path: Path, catalog: Path, input_file: Path, run: Run) -> None:
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "out.csv"
    link.symlink_to(tmp_path / "elsewhere" / "real.csv")

    assert run("route", catalog, "--conversations", input_file, "-o", link).status == 0

    assert link.is_symlink()
    assert (tmp_path / "elsewhere" / "real.csv").stat().st_size > 1000


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_full_disk_keeps_the_old_file(tmp_path: Path, catalog: Path, input_file: Path, suffix: str) -> None:
    output = tmp_path / "result" / f"out{suffix}"
    output.parent.mkdir()
    output.write_text("old")
    limit = f"ulimit -f 64; exec {' '.join(COMMAND)} {catalog} --conversations {input_file} -o {output}"

    done = subprocess.run(["/bin/sh", "-c", limit], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"ssbroker: {output}: cannot be written: ")
    assert done.stderr.endswith("File too large\n")
    assert done.stderr.count("\n") == 1
    assert [entry.name for entry in output.parent.iterdir()] == [output.name]
    assert output.read_text() == "old"


# Sends the signal to the process while it routes a chunk.
INTERRUPTED = """
import os, sys
from ssbroker.cli import main, route_files
count_values = route_files.count_values
route_files.count_values = lambda decisions: (os.kill(os.getpid(), int(sys.argv[1])), count_values(decisions))[1]
sys.exit(main(sys.argv[2:]))
"""


def test_a_watch_that_is_interrupted_before_its_first_state_ends_silently(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Instance, "open", interrupt)
    result = run("watch", tmp_path)
    assert (result.status, result.out, result.err) == (0, "", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_keeps_the_old_file(
    tmp_path: Path, catalog: Path, input_file: Path, number: signal.Signals
) -> None:
    output = tmp_path / "result" / "out.jsonl"
    output.parent.mkdir()
    output.write_text("old")
    arguments = ["route", catalog, "--conversations", input_file, "-o", output]

    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(int(number)), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "ssbroker: interrupted; nothing was written\n"
    assert [entry.name for entry in output.parent.iterdir()] == ["out.jsonl"]
    assert output.read_text() == "old"


def test_interrupted_run_leaves_no_files(
    tmp_path: Path, catalog: Path, input_file: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ProgressBar, "update", interrupt)
    output = tmp_path / "result" / "out.csv"
    output.parent.mkdir()

    result = run("route", catalog, "--conversations", input_file, "-o", output)

    assert (result.status, result.err) == (130, "ssbroker: interrupted; nothing was written\n")
    assert list(output.parent.iterdir()) == []


def test_output_is_checked_before_input_is_read(tmp_path: Path, run: Run) -> None:
    """The missing catalog is not reported."""
    input_file = write(conversations(5), tmp_path / "in.csv")
    result = run("route", tmp_path / "nothing", "--conversations", input_file, "-o", tmp_path / "no" / "out.csv")
    assert result.status == 2
    assert result.err == f"ssbroker: {tmp_path / 'no' / 'out.csv'}: cannot be written: No such file or directory\n"


@pytest.mark.parametrize("command", ["route", "lint", "trace", "compare", "stuck"])
def test_report_is_checked_before_the_work(tmp_path: Path, run: Run, command: str) -> None:
    """Otherwise the result is lost, or another output is replaced although the command fails."""
    input_file, output = write(conversations(5), tmp_path / "in.csv"), tmp_path / "out.csv"
    catalog, report = tmp_path / "nothing.sql", tmp_path / "no" / "report.csv"
    arguments = {
        "route": ("--conversations", input_file, "-o", output, "--html", report),
        "lint": ("--sarif", output, "--html", report),
        "trace": ("--to-service", "//a", "--html", report),
        "compare": (catalog, "--html", report),
        "stuck": ("--queue", input_file, "-o", report),
    }
    result = run(command, catalog, *arguments[command])
    assert (result.status, result.err) == (2, f"ssbroker: {report}: cannot be written: No such file or directory\n")


def test_output_cannot_be_a_folder_or_device(tmp_path: Path, catalog: Path, input_file: Path, run: Run) -> None:
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "null.csv").symlink_to(os.devnull)
    for name, what in (("folder.csv", "it is a folder"), ("null.csv", "it is not a regular file")):
        result = run("route", catalog, "--conversations", input_file, "-o", tmp_path / name)
        assert (result.status, result.err) == (2, f"ssbroker: {tmp_path / name}: cannot be written: {what}\n")


def test_output_cannot_be_a_pipe(catalog: Path, input_file: Path) -> None:
    """`/dev/stdout` of a pipe is a link to a name that does not exist."""
    program = "import sys; from ssbroker.cli import main; sys.exit(main(sys.argv[1:]))"
    files = [str(catalog), "--conversations", str(input_file), "-o", "/dev/stdout", "--format", "csv"]
    done = subprocess.run([sys.executable, "-c", program, "route", *files], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "ssbroker: /dev/stdout: cannot be written: it is not a regular file\n"


def test_output_cannot_be_the_file_of_standard_output(tmp_path: Path, catalog: Path, input_file: Path) -> None:
    """With `>>`, the file has earlier lines."""
    log = tmp_path / "all.csv"
    log.write_text("old\n")
    for output in ("/dev/stdout", log):
        files = [str(catalog), "--conversations", str(input_file), "-o", str(output), "--format", "csv"]
        with log.open("a") as opened:
            done = subprocess.run([*COMMAND, *files], stdout=opened, stderr=subprocess.PIPE, text=True, check=False)
        error = f"ssbroker: {output}: cannot be written: it is also the standard output of this command\n"
        assert (done.returncode, done.stderr) == (2, error)
        assert log.read_text() == "old\n"


def test_read_only_file_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out.csv").write_text("old")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(OutputError, match="read-only"), replacing_files([tmp_path / "out.csv"]):
        pass
    assert (tmp_path / "out.csv").read_text() == "old"


def test_output_cannot_be_an_input(tmp_path: Path, catalog: Path, input_file: Path, run: Run) -> None:
    before = input_file.read_bytes()
    (tmp_path / "link.parquet").symlink_to(input_file)
    (tmp_path / "hard.parquet").hardlink_to(input_file)
    for name in ("in.parquet", "link.parquet", "hard.parquet"):
        result = run("route", catalog, "--conversations", input_file, "-o", tmp_path / name)
        assert result.status == 2
        assert result.err.endswith(f"cannot be written: it is also an input ({input_file})\n")
    assert input_file.read_bytes() == before


def test_output_cannot_be_part_of_the_catalog(catalog: Path, input_file: Path, run: Run) -> None:
    for output in (catalog / "routes.parquet", catalog / "databases.csv"):
        result = run("route", catalog, "--conversations", input_file, "-o", output)
        assert result.status == 2
        assert result.err.endswith(f"cannot be written: it is part of the catalog ({catalog})\n")
    assert pq.read_table(catalog / "routes.parquet").num_rows == 9


def test_output_cannot_contain_an_input_or_the_catalog(tmp_path: Path, catalog: Path, input_file: Path) -> None:
    with pytest.raises(OutputError) as refused:
        refuse_overwriting([tmp_path], inputs=[input_file], catalogs=[])
    assert str(refused.value) == (
        f"{tmp_path}: cannot be written: it contains the input {input_file}; choose another path"
    )
    with pytest.raises(OutputError) as refused:
        refuse_overwriting([catalog.parent], inputs=[], catalogs=[catalog])
    assert str(refused.value) == (
        f"{catalog.parent}: cannot be written: it contains the catalog {catalog}; choose another path"
    )


def test_folder_is_replaced_only_if_spark_wrote_it(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    for _ in range(2):
        with replacing_folder(folder) as part:
            part.mkdir()
            (part / "part-0.parquet").touch()
            (part / "_SUCCESS").touch()
    (folder / "letter.txt").touch()
    with pytest.raises(OutputError, match="a file that Spark did not write"), replacing_folder(folder):
        pass
    assert sorted(entry.name for entry in folder.iterdir()) == ["_SUCCESS", "letter.txt", "part-0.parquet"]
    assert list(tmp_path.iterdir()) == [folder]


def test_incomplete_folder_does_not_replace_the_old_one(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "part-0").touch()
    with pytest.raises(RuntimeError), replacing_folder(folder) as part:
        part.mkdir()
        (part / "part-1").touch()
        raise RuntimeError
    assert [entry.name for entry in folder.iterdir()] == ["part-0"]
    assert list(tmp_path.iterdir()) == [folder]
