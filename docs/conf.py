"""Settings of Sphinx for the site of the documentation (``build.py``)."""

import re

project = "lowtide"
author = "the lowtide authors"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = "lowtide"
html_show_sourcelink = False
myst_heading_anchors = 4
exclude_patterns = ["*.py"]
nb_execution_mode = (
    "force"  # the notebooks hold no results: what the site shows ran when it was built
)
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_execution_timeout = 120  # seconds a cell
nb_merge_streams = True
default_role = "code"
autodoc_typehints = "none"  # types stand in the docstrings where they say more than the names
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
add_module_names = False
napoleon_google_docstring = True
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_custom_sections = ["Memory", "Source"]
suppress_warnings = ["ref.python"]


def keep_stars(app, what, name, obj, options, lines):
    """Keep the stars of formulas and of ``*args``: reStructuredText would set them as emphasis."""
    for number, line in enumerate(lines):
        parts = re.split(r"(``.*?``)", line)  # literals stay as they are
        parts[::2] = [part.replace("*", r"\*") for part in parts[::2]]
        lines[number] = "".join(parts)


def setup(app):
    """Run before napoleon, which has priority 500."""
    app.connect("autodoc-process-docstring", keep_stars, priority=400)
