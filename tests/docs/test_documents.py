"""The code and commands of each document give the output that it shows.

A page's blocks are run in order, in one folder that has the repository's `examples`; that of a quickstart is empty:
`python` (a `text` block below it is what it prints), `console` (each `$ command`, and what it prints; `exit status 2` where it
fails), `sql` and `toml` (a file, named in its first line: `-- name.sql`, `# name.toml`), `python` with such a line (`# name.py`). `...` in shown output matches anything within a line.
A `mermaid` block is drawn. A block without a language is a figure, which only ARCHITECTURE.md may have.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import mermaidx
import pytest

from tests.docs.conftest import SparkRoom
from tests.docs.interpreter import Interpreter
from tests.docs.markdown import Block, blocks, commands
from tests.docs.session import Session, same
from tests.guards.repository import ROOT, committed_files, name_of

PAGES = [path for path in committed_files() if path.suffix == ".md"]
# What a page shows and this test cannot run inside itself, and what is run instead of it or elsewhere.
MAKE = re.compile(r"make (?P<target>\w+)(?: \w+=.*)?")
ELSEWHERE = {
    "pip install ssbroker": "the CI installs the wheel alone and uses it",
    "pip install 'ssbroker[cli]'": "`make test` has installed it so",
    "pip install 'ssbroker[broker]'": "`make test` has installed it so",
    "pip install 'ssbroker[http]'": "`make test` has installed it so",
    "pip install 'ssbroker[local-spark]'": "`make test` has installed it so",
    'python export.py "Server=sql-01.shop.example;..."': "needs a SQL Server; tests/catalog reads the rows that one returns",
    "./.ci/run": "the CI",
}
FIGURES = {"ARCHITECTURE.md"}
# What a new user can do after the installation, with nothing else at hand.
QUICKSTARTS = {f"docs/tutorials/{name}.md" for name in ("data-engineer", "dba", "work-queue")}
RUN_TWICE = {f"docs/tutorials/{name}.md" for name in ("orders-and-stock", "two-instances", "work-queue")}


SHOWING = [path for path in PAGES if "```" in path.read_text(encoding="utf-8")]
ON_SPARK = [
    path for path in SHOWING if re.search(r"^(from pyspark|\$ python examples/)", path.read_text("utf-8"), re.MULTILINE)
]


@pytest.mark.parametrize("path", [path for path in SHOWING if path not in ON_SPARK], ids=name_of)
def test_a_page_does_what_it_shows(path: Path, tmp_path: Path) -> None:
    """Tutorials do it a second time, too."""
    try_page(path, tmp_path, None)
    if name_of(path) in RUN_TWICE:
        try_again(path, tmp_path)


@pytest.mark.parametrize("path", ON_SPARK, ids=name_of)
def test_a_page_of_spark_does_what_it_shows(path: Path, spark_room: SparkRoom) -> None:
    """In a process that may have run other pages; `make demo` runs two of the programs as a user does."""
    try_page(path, spark_room.folder, spark_room.interpreter)


def try_page(path: Path, folder: Path, interpreter: Interpreter | None) -> None:
    if name_of(path) not in QUICKSTARTS:
        shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns(".cache"))
    page = list(blocks(path.read_text(encoding="utf-8")))
    with Session(folder, interpreter) as session:
        for block, following in zip(page, [*page[1:], None], strict=True):
            try_block(name_of(path), block, following, session)


def try_block(page: str, block: Block, following: Block | None, session: Session) -> None:
    where = f"{page}:{block.line}"
    if block.language == "python" and (program := re.match(r"# (\w+\.py)\n", block.text)):
        session.write(program[1], block.text)
    elif block.language == "python":
        printed = session.python(block.text)
        shown = following.text if following is not None and following.language == "text" else ""
        assert same(printed, shown), f"{where} prints\n{printed}"
    elif block.language == "console":
        for command in commands(block):
            if command.command in ELSEWHERE:
                continue
            if make := MAKE.fullmatch(command.command):
                subprocess.run(["make", "--dry-run", make["target"]], cwd=ROOT, check=True, capture_output=True)
                continue
            printed = session.shell(command.command)
            assert same(printed, command.output), f"{page}:{command.line} prints\n{printed}"
    elif block.language in ("sql", "toml"):
        name = re.match(rf"(?:--|#) (\w+\.{block.language})\n", block.text)
        assert name, f"{where}: the first line names the file"
        session.write(name[1], block.text)
    elif block.language == "mermaid":
        assert mermaidx.render(block.text).svg().startswith("<svg"), f"{where}: a diagram"
    elif block.language != "text":
        assert block.language == "", f"{where}: nobody runs {block.language}"
        assert page in FIGURES, f"{where}: a figure"


def try_again(path: Path, folder: Path) -> None:
    """Runs a page in a new process, in the folder of the first run; numbers in its output may continue."""
    page = list(blocks(path.read_text(encoding="utf-8")))
    with Session(folder, None) as session:
        for block, following in zip(page, [*page[1:], None], strict=True):
            if block.language == "python" and not re.match(r"# \w+\.py\n", block.text):
                printed = session.python(block.text)
                shown = following.text if following is not None and following.language == "text" else ""
                assert len(printed.splitlines()) == len(shown.splitlines()), f"line {block.line} prints\n{printed}"
            elif block.language == "console":
                for command in commands(block):
                    if command.command not in ELSEWHERE and not command.command.startswith("ssbroker certificates"):
                        printed = session.shell(command.command)
                        assert ("exit status" in printed) == ("exit status" in command.output), printed


def test_the_quickstarts_are_pages() -> None:
    assert {name_of(path) for path in PAGES} > QUICKSTARTS


def test_every_output_stands_below_what_prints_it() -> None:
    for path in PAGES:
        page = list(blocks(path.read_text(encoding="utf-8")))
        for above, block in zip([None, *page], page, strict=False):
            assert block.language != "text" or (above and above.language == "python"), f"{name_of(path)}:{block.line}"


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_every_link_leads_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\((?!https?://|#)([^)#\s]+)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), target


def test_every_page_is_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        links = re.findall(r"\]\((?!https?://|#)([^)#\s]+)", page.read_text(encoding="utf-8"))
        waiting += [(page.parent / link).resolve() for link in links]
    assert [name_of(page) for page in PAGES if page not in reached] == []


def test_what_is_shown_is_compared_line_by_line() -> None:
    assert same("a\nb 12 s \n", "a\nb ... s\n")
    assert not same("a\nb\n", "a\n")
    assert not same("a\n", "a\nb\n")
    assert not same("", "a\n")
    assert same("", "")
