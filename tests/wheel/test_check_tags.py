from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tests.wheel.check_tags import platform_problems, problems

NAME = "ssbroker-0.1.0-cp311-abi3-manylinux_2_34_x86_64.whl"
WHOLE = [
    "pyspark_ssbroker/__init__.py",
    "ssbroker/__init__.py",
    "ssbroker/_core.abi3.so",
    "ssbroker/_core.pyi",
    "ssbroker/cli/__init__.py",
    "ssbroker/diagnose/page/LICENSES.txt",
    "ssbroker/diagnose/page/cytoscape.min.js",
    "ssbroker/diagnose/page/dagre.min.js",
    "ssbroker/diagnose/page/page.css",
    "ssbroker/diagnose/page/page.js",
    "ssbroker/py.typed",
    "ssbroker-0.1.0.dist-info/WHEEL",
]


def wheel(folder: Path, name: str, members: list[str], tag: str = "cp311-abi3-manylinux_2_34_x86_64") -> Path:
    with zipfile.ZipFile(folder / name, "w") as archive:
        for member in members:
            archive.writestr(member, f"Wheel-Version: 1.0\nTag: {tag}\n")
    return folder / name


def test_a_whole_wheel_has_no_problem(tmp_path: Path) -> None:
    assert problems(wheel(tmp_path, NAME, WHOLE)) == []


def test_a_wheel_without_the_gil_has_a_native_module_of_its_own(tmp_path: Path) -> None:
    name, tag = "ssbroker-0.1.0-cp314-cp314t-manylinux_2_17_x86_64.whl", "cp314-cp314t-manylinux_2_17_x86_64"
    (wrong,) = problems(wheel(tmp_path, name, WHOLE, tag))
    assert "the native module is" in wrong
    members = [each.replace("_core.abi3.", "_core.cpython-314t-x86_64-linux-gnu.") for each in WHOLE]
    assert problems(wheel(tmp_path, name, members, tag)) == []


@pytest.mark.parametrize(
    ("name", "members", "tag", "says"),
    [
        ("ssbroker-0.1.0-cp311-cp311-linux_x86_64.whl", WHOLE, "cp311-abi3-linux_x86_64", "is not tagged cp311-abi3"),
        (NAME, WHOLE, "cp311-cp311-linux_x86_64", "the metadata contains a different tag"),
        (
            NAME,
            [name for name in WHOLE if name != "ssbroker/py.typed"],
            "cp311-abi3-any",
            "ssbroker/py.typed is missing",
        ),
        (NAME, [*WHOLE, "ssbroker/_core.cpython-311.so"], "cp311-abi3-any", "the native module is"),
        (NAME, [*WHOLE, "tests/test_it.py"], "cp311-abi3-any", "tests/test_it.py does not belong here"),
    ],
)
def test_what_is_wrong_with_a_wheel(name: str, members: list[str], tag: str, says: str, tmp_path: Path) -> None:
    assert any(says in problem for problem in problems(wheel(tmp_path, name, members, tag)))


@pytest.mark.parametrize(
    ("tag", "audited", "found"),
    [
        ("manylinux2014_x86_64.manylinux_2_17_x86_64", 'the following platform tag: "manylinux_2_17_x86_64".', 0),
        ("manylinux_2_17_x86_64", 'the following platform tag:\n"manylinux_2_34_x86_64".', 1),
        ("manylinux_2_34_x86_64", 'the following platform tag:\n"manylinux_2_34_x86_64".', 0),
    ],
)
def test_a_module_that_needs_a_newer_system_than_the_tag_says_is_found(
    tag: str, audited: str, found: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what auditwheel prints; the CI runs it."""
    (tmp_path / "auditwheel.py").write_text(f"print({audited!r})\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    path = tmp_path / f"ssbroker-0.1.0-cp311-abi3-{tag}.whl"
    assert len(platform_problems(path)) == found
