"""Settings of the documentation site. `make docs` assembles its pages (scripts/docs_site.py) and builds it into target/site."""

import re
from importlib.metadata import version as _version

project = "ssbroker"
author = "The ssbroker founders"
version = release = _version("ssbroker")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
html_theme = "furo"
html_title = f"ssbroker {release}"
html_show_sourcelink = False
html_copy_source = False
smartquotes = False  # options begin with two hyphens
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
python_use_unqualified_type_names = True
maximum_signature_line_length = 100
suppress_warnings = ["myst.header"]  # reference pages begin with the level that fits their section


def _double_backticks(app, what, name, obj, options, lines):
    """Docstrings quote code with one backtick, as Markdown does."""
    lines[:] = [re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", line) for line in lines]


def setup(app):
    app.connect("autodoc-process-docstring", _double_backticks, priority=100)  # before napoleon
