# SPDX-License-Identifier: MIT
"""Sphinx configuration; `make docs` builds it with warnings as errors."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from doc_links import address  # noqa: E402

VERSION = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)

project = "Transformer Kernel Pack"
author = "Transformer Kernel Pack contributors"
copyright = f"2026, {author}"
version = release = VERSION[1] if VERSION else ""

extensions = [
    "breathe",
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build", "_generated"]
html_theme = "furo"
html_title = f"{project} {version}"
html_static_path = ["_static"]
html_css_files = ["pages.css"]

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nitpicky = False

# The button copies what is typed, without prompts and output.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_line_continuation_character = "\\"

breathe_projects = {"transformer_kernels": str(ROOT / "docs" / "_build" / "doxygen" / "xml")}
breathe_default_project = "transformer_kernels"
breathe_default_members = ("members",)

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True

# ---- links into PyTorch's and Python's documentation --------------------------------------------


def link_elsewhere(app: Any, env: Any, node: Any, content: Any) -> Any:  # noqa: ARG001
    """Resolves a reference that these pages lack, where the name tells its address."""
    if node.get("refdomain") != "py":
        return None
    target = address(node["reftarget"], node.get("reftype") == "mod")
    return nodes.reference("", "", content, refuri=target, internal=False) if target else None


def setup(app: Any) -> None:
    app.connect("missing-reference", link_elsewhere)
