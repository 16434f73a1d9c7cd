"""Makes the links of README.md absolute and adds [project.urls] to pyproject.toml, in place, for a release.

PyPI shows README.md without the other files. The release workflow knows the address of its repository:
`python scripts/release_links.py https://host/owner/name v1.2.0`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
_LINK: Final = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s:]+)\)")
_NEXT_TABLE: Final = "[project.optional-dependencies]\n"


def absolute_links(readme: str, *, url: str, tag: str) -> str:
    """Returns the text with links to files of the repository at a tag.

    Examples:
        >>> absolute_links("See [all pages](docs/README.md).", url="https://host/owner/name", tag="v1.2.0")
        'See [all pages](https://host/owner/name/blob/v1.2.0/docs/README.md).'
    """

    def replaced(link: re.Match[str]) -> str:
        kind = "raw" if link["image"] else "blob"
        return f"{link['image']}[{link['text']}]({url}/{kind}/{tag}/{link['target']})"

    return _LINK.sub(replaced, readme)


def with_urls(pyproject: str, *, url: str, tag: str) -> str:
    """Returns the text of pyproject.toml with [project.urls]."""
    urls = {
        "Documentation": f"{url}/blob/{tag}/docs/README.md",
        "Changelog": f"{url}/blob/{tag}/CHANGELOG.md",
        "Source": url,
        "Issues": f"{url}/issues",
    }
    table = "".join(f'{name} = "{address}"\n' for name, address in urls.items())
    before, found, after = pyproject.partition(_NEXT_TABLE)
    if not found or "[project.urls]" in pyproject:
        raise SystemExit("pyproject.toml: expected [project.optional-dependencies] and no [project.urls]")
    return f"{before}[project.urls]\n{table}\n{found}{after}"


def main(url: str, tag: str) -> None:
    """Rewrites both files."""
    for name, rewritten in (("README.md", absolute_links), ("pyproject.toml", with_urls)):
        path = ROOT / name
        path.write_text(rewritten(path.read_text(encoding="utf-8"), url=url.rstrip("/"), tag=tag), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
