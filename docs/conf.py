"""The settings of Sphinx for the documentation site. `make docs` builds it without network."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "Cavity"
author = "the Cavity project"
copyright = "the Cavity project, Apache-2.0"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "pages",  # docs/_ext: text that is made at build time
]
exclude_patterns = ["_build", "_ext", "jupyter_execute"]
source_suffix = {".md": "myst-nb"}

# Every name in a reference must exist.
nitpicky = True
default_role = "literal"  # docstrings write code between single backticks

myst_heading_anchors = 4  # the same anchors as on GitHub
myst_enable_extensions = ["deflist"]
nb_execution_mode = "off"  # tutorials have their output in the text; `make docs-run` checks it

autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = False
napoleon_use_rtype = False

html_theme = "furo"
html_title = "Cavity"
html_copy_source = False
html_show_sourcelink = False
