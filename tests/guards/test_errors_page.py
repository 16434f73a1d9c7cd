"""Every error class is exported, and on the page of errors."""

from __future__ import annotations

import ast

import ssbroker
from ssbroker import exceptions
from tests.guards.repository import ROOT

PACKAGE = ROOT / "python" / "ssbroker"
INTERNAL = {
    "EncodingError": "DdlError",
    "FileNotEmptyError": "BrokerError",
    "InvalidCellError": "InputError",
}
"""Subclasses that users do not need to tell apart, and the class that they get."""
CLASSES = {
    name: value
    for name, value in vars(exceptions).items()
    if isinstance(value, type) and issubclass(value, Exception) and value.__module__ == exceptions.__name__
}


def test_every_error_class_can_be_imported_from_the_package() -> None:
    assert CLASSES.keys() - set(ssbroker.__all__) == set()


def test_the_page_lists_every_error_class() -> None:
    page = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    assert [
        name for name in (*CLASSES, "MissingSparkError") if f"`{name}`" not in page and f".{name}`" not in page
    ] == []


def test_public_errors_are_defined_in_one_module() -> None:
    """Or, for a package that needs PySpark, in that package."""
    elsewhere = {
        node.name
        for path in PACKAGE.rglob("*.py")
        if path != PACKAGE / "exceptions.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
        and any(isinstance(base, ast.Name) and base.id in (CLASSES.keys() | INTERNAL) for base in node.bases)
    }
    assert elsewhere == {*INTERNAL, "MissingSparkError"}
