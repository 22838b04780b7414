#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Builds the documentation; any warning fails."""

from __future__ import annotations

import subprocess
import sys

import check_search
import render_migration
import render_ops
import render_performance
import render_pictures
import render_results
import render_scaling
import render_sharding
import render_tutorials
from build import SCRIPTS
from setup_env import ROOT

DOCS = ROOT / "docs"
BUILD = DOCS / "_build"


def main() -> int:
    render_results.write_pages()
    render_ops.write_pages()
    render_sharding.write_table()
    render_migration.write_pages()
    render_pictures.write_blocks()
    render_tutorials.write_pages()
    render_performance.write_guide()
    render_scaling.write_page()
    (BUILD / "doxygen").mkdir(parents=True, exist_ok=True)
    doxygen = subprocess.run(["doxygen", "Doxyfile"], cwd=DOCS, check=False)
    if doxygen.returncode != 0:
        return doxygen.returncode
    sphinx = [SCRIPTS / "python", "-m", "sphinx", "-W", "--keep-going", "-q", "-j", "auto"]
    command = [str(part) for part in (*sphinx, "-b", "html", DOCS, BUILD / "html")]
    result = subprocess.run(command, check=False)
    if result.returncode != 0:
        return result.returncode
    print(f"[docs] {(BUILD / 'html' / 'index.html').relative_to(ROOT)}")
    return check_search.report(BUILD / "html" / "searchindex.js")


if __name__ == "__main__":
    sys.exit(main())
