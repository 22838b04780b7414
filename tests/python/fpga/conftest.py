# SPDX-License-Identifier: MIT
"""Makes tools importable: they are scripts and import each other by bare names."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))
