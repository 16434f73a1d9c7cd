"""Builds the documentation site into target/site: `python scripts/docs_site.py`, in an environment with ssbroker and the group `docs`.

The pages are those of `docs`, some Markdown files outside it, the API reference (from docstrings) and the command line reference (from the
commands). docs/README.md is the index: each page of `docs` must be listed there. A link to a file that is not a page becomes plain text.
Fails on a broken link, on a warning of Sphinx, and on a public name without an entry in the API reference.
"""

from __future__ import annotations

import importlib
import posixpath
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import mermaidx
import typer
from sphinx.cmd.build import build_main
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.inventory import InventoryFile

from ssbroker.cli import help  # noqa: A004 - the module is named after what it writes
from ssbroker.cli.app import app

ROOT: Final = Path(__file__).parents[1]
SOURCE: Final = ROOT / "target" / "site-source"
SITE: Final = ROOT / "target" / "site"

OUTSIDE: Final = {
    "README.md": "project/readme.md",
    "ARCHITECTURE.md": "project/architecture.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "benches/README.md": "project/benchmarks.md",
    "examples/landing_messages/README.md": "examples/landing_messages.md",
    "examples/reassemble_a_day/README.md": "examples/reassemble_a_day.md",
    "examples/route_a_day/README.md": "examples/route_a_day.md",
    "examples/serve/README.md": "examples/serve.md",
}
"""Files outside `docs` that are pages of the site."""
MODULES: Final = (
    "ssbroker",
    "ssbroker.spark",
    "ssbroker.diagnose",
    "ssbroker.testing",
    "ssbroker.exceptions",
    "ssbroker.schemas",
)
"""The public modules."""

_LINK: Final = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
_ANCHOR: Final = re.compile(r'^<a id="(?P<id>\w+)"></a>', re.MULTILINE)
_FENCED: Final = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def main() -> int:
    """Builds the site; returns the exit status."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    shutil.rmtree(SITE, ignore_errors=True)
    assemble()
    status = build_main(["-q", "-W", "--keep-going", "-j", "2", "-c", str(ROOT / "docs"), str(SOURCE), str(SITE)])
    missing = list(_undocumented())
    if missing:
        print(f"without an entry in the API reference: {', '.join(missing)}", file=sys.stderr)
    if not status and not missing:
        print(f"built: {SITE / 'index.html'}")
    return status or bool(missing)


def assemble() -> None:
    """Writes the sources of all pages."""
    for path in [*(ROOT / "docs").rglob("*.md"), *(ROOT / name for name in OUTSIDE)]:
        name = path.relative_to(ROOT).as_posix()
        page = str(page_of(name))
        text = _FENCED.split(path.read_text(encoding="utf-8"))
        write(page, "".join(section(part, name, page) for part in text))
    for path in (ROOT / "docs").rglob("*"):
        if path.suffix in {".png", ".svg"}:
            target = SOURCE / path.relative_to(ROOT / "docs")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    write("reference/commands.md", commands())
    for module in MODULES:
        write(f"api/{module}.rst", api(module))
    with (SOURCE / "index.md").open("a", encoding="utf-8") as index:
        for title, entries in navigation():
            index.write(f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n" + "\n".join(entries) + "\n```\n")


def section(text: str, file: str, page: str) -> str:
    """Returns a part of a page: a fenced block or the text between two."""
    if text.startswith("```mermaid\n"):
        return diagram(text.removeprefix("```mermaid\n").removesuffix("```"), page)
    return text if text.startswith("```") else redirect(text, file, page)


def diagram(source: str, page: str) -> str:
    """Draws a Mermaid diagram in the colours of both themes, and returns the text that shows it; its `accTitle` describes it."""
    (title,) = re.findall(r"^ *accTitle: (.+)$", source, re.MULTILINE)
    images = []
    for theme, drawn_as in (("light", "neutral"), ("dark", "dark")):
        name = f"{re.sub(r'[^a-z0-9]+', '-', title.lower()).strip('-')}-{theme}.svg"
        write(posixpath.join(posixpath.dirname(page), name), mermaidx.render(source, theme=drawn_as).svg())
        images.append(f"```{{image}} {name}\n:alt: {title}\n:align: center\n:class: only-{theme}\n```\n")
    return "\n".join(images)


def write(page: str, text: str) -> None:
    """Writes the source of a page."""
    target = SOURCE / page
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")


def page_of(path: str) -> str | None:
    """Returns the page of a file of the repository; None if it has none."""
    if path == "docs/README.md":
        return "index.md"
    return path.removeprefix("docs/") if path.startswith("docs/") else OUTSIDE.get(path)


def redirect(text: str, file: str, page: str) -> str:
    """Points the links of a file to pages."""

    def replaced(link: re.Match[str]) -> str:
        if ":" in link["target"]:
            return link[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(file), link["target"]))
        if not (ROOT / path).exists():
            raise FileNotFoundError(f"{file}: the link to {link['target']} leads nowhere")
        target = page_of(path)
        if target is None or not target.endswith((".md", ".png", ".svg")):
            return link["text"]
        relative = posixpath.relpath(target, posixpath.dirname(page) or ".")
        return f"{link['image']}[{link['text']}]({relative}{link['anchor'] or ''})"

    return _ANCHOR.sub(r"(\g<id>)=\n", _LINK.sub(replaced, text))


def navigation() -> Iterator[tuple[str, list[str]]]:
    """Yields the sections of the site with their pages."""
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    for title, body in re.findall(r"^\*\*(.+?)\*\*\n(.*?)(?=^\*\*|\Z)", index, flags=re.MULTILINE | re.DOTALL):
        targets = re.findall(r"^- \[.+?\]\(([^)#]+)\)", body, flags=re.MULTILINE)
        entries = [target.removesuffix(".md") for target in targets if not target.startswith("..")]
        if title == "Reference":
            entries.append("reference/commands")
        if title == "Project":
            yield "Examples", [page.removesuffix(".md") for page in OUTSIDE.values() if page.startswith("examples/")]
            entries[:0] = [page.removesuffix(".md") for page in OUTSIDE.values() if page.startswith("project/")]
        if entries:
            yield title, entries
        if title == "Reference":
            yield "API", [f"api/{module}" for module in MODULES]


def public_names(module: str) -> list[str]:
    """Returns the public names of a module, without modules."""
    loaded = importlib.import_module(module)
    names = getattr(loaded, "__all__", None)
    if names is None:
        names = [
            name
            for name, value in vars(loaded).items()
            if (name.isupper() if not hasattr(value, "__module__") else value.__module__ == module)
        ]
    return [name for name in names if not name.startswith("_") and f"{module}.{name}" not in MODULES]


def api(module: str) -> str:
    """Returns the page with the public names of a module."""
    loaded = importlib.import_module(module)
    heading = f"``{module}``"
    parts = [heading, "=" * len(heading), "", f".. py:module:: {module}", ""]
    for name in public_names(module):
        value = getattr(loaded, name)
        is_error_elsewhere = (
            module != "ssbroker.exceptions" and getattr(value, "__module__", "") == "ssbroker.exceptions"
        )
        if is_error_elsewhere:
            continue
        parts += [name, "-" * len(name), ""]
        if isinstance(value, type):
            kind = "exception" if issubclass(value, BaseException) else "class"
            parts += [f".. auto{kind}:: {module}.{name}", "   :members:", ""]
        elif callable(value):
            parts += [f".. autofunction:: {module}.{name}", ""]
        else:
            parts += [f".. py:data:: {name}", "", *(f"   {line}" for line in _comment(loaded, name)), ""]
    return "\n".join(parts)


def _comment(module: ModuleType, name: str) -> list[str]:
    """Returns the docstring below the definition of a constant, which `module` may import from elsewhere."""
    for line in Path(str(module.__file__)).read_text(encoding="utf-8").splitlines():
        if found := re.match(rf"from (\S+) import .*\b{name}\b", line):
            return _comment(importlib.import_module(found[1]), name)
    documented = ModuleAnalyzer.for_module(module.__name__).find_attr_docs()
    return [re.sub(r"`+", "``", line) for line in documented["", name]]


def commands() -> str:
    """Returns the page about all commands, from their help."""
    group: Any = typer.main.get_command(app)
    parts = ["# Command line", "", "`--help` prints the same for each command.", ""]
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        context = command.make_context(f"ssbroker {name}", [], resilient_parsing=True)
        parts += [f"## `ssbroker {name}`", "", command.help or "", "", f"    ssbroker {name} {help.usage(command)}", ""]
        parameters = [each for each in command.get_params(context) if not getattr(each, "hidden", False)]
        rows = [f"| `{cell(help.label(each))}` | {cell(help.meaning(each))} |" for each in parameters]
        parts += ["| option | meaning |", "|---|---|", *rows, ""] if rows else []
    return "\n".join(parts)


def cell(text: str) -> str:
    """Returns text as a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")


def _undocumented() -> Iterator[str]:
    inventory = InventoryFile.loads((SITE / "objects.inv").read_bytes(), uri="")
    entries = {name for kind, names in inventory.data.items() if kind.startswith("py:") for name in names}
    for module in MODULES:
        for name in public_names(module):
            if f"{module}.{name}" not in entries and f"ssbroker.exceptions.{name}" not in entries:
                yield f"{module}.{name}"


if __name__ == "__main__":
    sys.exit(main())
