"""A wheel is one for every Python from 3.11 on, whole, and free of what belongs to the sources. Run: check_tags.py WHEEL.

If auditwheel is installed, the symbols of the native module must be those of the wheel's platform.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path

OWN = ("ssbroker/", "pyspark_ssbroker/", "ssbroker-")


def problems(wheel: Path) -> list[str]:
    """What is wrong with a wheel."""
    found = [] if "-cp311-abi3-" in wheel.name else [f"{wheel.name} is not tagged cp311-abi3"]
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        tags = [archive.read(name).decode() for name in names if name.endswith(".dist-info/WHEEL")]
    wanted = ["ssbroker/__init__.py", "ssbroker/_core.pyi", "ssbroker/py.typed", "ssbroker/cli/__init__.py"]
    wanted.append("pyspark_ssbroker/__init__.py")  # Spark finds the format by this name
    found += [f"{name} is missing" for name in wanted if name not in names]
    native = [name for name in names if name.startswith("ssbroker/_core.") and not name.endswith(".pyi")]
    if not (len(native) == 1 and (".abi3." in native[0] or native[0].endswith(".pyd"))):
        found.append(f"the native module is {native}")
    found += [f"{name} does not belong here" for name in names if not name.startswith(OWN)]
    return (
        found if tags and all("Tag: cp311-abi3-" in tag for tag in tags) else [*found, "the metadata say another tag"]
    )


def platform_problems(wheel: Path) -> list[str]:
    """Whether the native module needs a newer system than the tag of a manylinux wheel promises."""
    platform = wheel.stem.rpartition("-")[2].partition(".")[0]
    if "manylinux" not in platform or importlib.util.find_spec("auditwheel") is None:
        return []
    audited = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", wheel], capture_output=True, text=True, check=False
    )
    text = " ".join(audited.stdout.split())
    return (
        [] if f'"{platform}"' in text else [f"the tag says {platform}, and auditwheel says: {text or audited.stderr}"]
    )


if __name__ == "__main__":
    for line in platform_problems(Path(sys.argv[1])):
        sys.exit(f"{sys.argv[1]}: {line}")
    for line in problems(Path(sys.argv[1])):
        sys.exit(f"{sys.argv[1]}: {line}")
