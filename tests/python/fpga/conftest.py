# SPDX-License-Identifier: MIT
"""The tools are scripts: they import each other by bare names from their own folder."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))
