"""Checks that a wheel is complete, and contains nothing that belongs only to the sources. Run: check_tags.py WHEEL.

The wheel must support every Python from 3.11 on, or Python 3.14 without the GIL.
If auditwheel is installed, the symbols of the native module must be those of the wheel's platform.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path

TAGS = ("cp311-abi3", "cp314-cp314t")
OWN = ("ssbroker/", "pyspark_ssbroker/", "ssbroker-")


def problems(wheel: Path) -> list[str]:
    """Returns the problems of a wheel."""
    tag = next((each for each in TAGS if f"-{each}-" in wheel.name), TAGS[0])
    found = [] if f"-{tag}-" in wheel.name else [f"{wheel.name} is not tagged {' or '.join(TAGS)}"]
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        tags = [archive.read(name).decode() for name in names if name.endswith(".dist-info/WHEEL")]
    wanted = ["ssbroker/__init__.py", "ssbroker/_core.pyi", "ssbroker/py.typed", "ssbroker/cli/__init__.py"]
    wanted += [
        f"ssbroker/diagnose/page/{name}"
        for name in ("page.js", "page.css", "cytoscape.min.js", "dagre.min.js", "LICENSES.txt")
    ]
    wanted.append("pyspark_ssbroker/__init__.py")  # Spark finds the format by this name
    found += [f"{name} is missing" for name in wanted if name not in names]
    native = [name for name in names if name.startswith("ssbroker/_core.") and not name.endswith(".pyi")]
    suffix = ".abi3." if tag == TAGS[0] else ".cpython-314t-"
    if not (len(native) == 1 and (suffix in native[0] or native[0].endswith(".pyd"))):
        found.append(f"the native module is {native}")
    found += [f"{name} does not belong here" for name in names if not name.startswith(OWN)]
    return (
        found
        if tags and all(f"Tag: {tag}-" in text for text in tags)
        else [*found, "the metadata contains a different tag"]
    )


def platform_problems(wheel: Path) -> list[str]:
    """Returns a problem if the native module needs a newer system than the tags of a manylinux wheel promise."""
    platforms = wheel.stem.rpartition("-")[2].split(".")
    if "manylinux" not in platforms[0] or importlib.util.find_spec("auditwheel") is None:
        return []
    command = [sys.executable, "-m", "auditwheel", "show", str(wheel)]
    audited = subprocess.run(command, capture_output=True, text=True, check=False)
    text = " ".join(audited.stdout.split())
    if any(f'"{platform}"' in text for platform in platforms):
        return []
    return [f"the tag says {' or '.join(platforms)}, and auditwheel says: {text or audited.stderr}"]


if __name__ == "__main__":
    for line in [*problems(Path(sys.argv[1])), *platform_problems(Path(sys.argv[1]))]:
        sys.exit(f"{sys.argv[1]}: {line}")
