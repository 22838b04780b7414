# SPDX-License-Identifier: MIT
"""Sphinx configuration; `make docs` builds it with warnings as errors."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSION = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)

project = "Transformer Kernel Pack"
author = "Transformer Kernel Pack contributors"
copyright = f"2026, {author}"
version = release = VERSION[1] if VERSION else ""

extensions = [
    "breathe",
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
]
exclude_patterns = ["_build", "_generated"]
html_theme = "furo"
html_title = f"{project} {version}"

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nitpicky = False

breathe_projects = {"transformer_kernels": str(ROOT / "docs" / "_build" / "doxygen" / "xml")}
breathe_default_project = "transformer_kernels"
breathe_default_members = ("members",)

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
