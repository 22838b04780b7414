# SPDX-License-Identifier: MIT
"""The look of every figure of the project. Importing this module loads matplotlib."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito's palette: colour-blind readers can tell these apart, on white and on black.
COLOURS = {
    "ours": "#d55e00",
    "torch": "#0072b2",
    "torchscript": "#e69f00",
    "foreach": "#5aa9e6",
    "compile": "#009e73",
    "triton": "#cc79a7",
    "math": "#999999",
    "cudnn": "#0a9ba6",
    "flash": "#7b52ab",
    "flex": "#d4a017",
    "fa3": "#8c564b",
    "fa4": "#2b2b6b",
    "liger": "#b08c00",
    "quack": "#56b4e9",
    "quack_tuned": "#1f78b4",
    "cublaslt": "#6b8e23",
    "segments": "#4c9a2a",
    "pyg": "#3c2179",
    "onednn": "#0068b5",
    "llama": "#7a5c00",
    "packed": "#f0a070",
    "copy": "#808080",
}
# Models that are trained side by side, by the names of their runs.
_MODELS = {
    "stock": COLOURS["torch"],
    "stock again": "#6fb1d6",  # stock's hue: the same model, with other masks
    "compiled": COLOURS["compile"],
    "ours": COLOURS["ours"],
    "rewritten": COLOURS["packed"],  # ours' hue, as those below
    "fused": COLOURS["ours"],
    "fused, graphs": "#a34700",
    "liger": COLOURS["liger"],
}
_OTHER_MODELS = (COLOURS["compile"], COLOURS["ours"], COLOURS["triton"], COLOURS["torchscript"])
NAMES = {
    "ours": "Ours",
    "torch": "PyTorch",
    "torchscript": "TorchScript",
    "foreach": "PyTorch, foreach",
    "compile": "torch.compile",
    "triton": "Triton (ours)",
    "math": "Standard",
    "cudnn": "cuDNN",
    "flash": "FlashAttention-2",
    "flex": "FlexAttention",
    "fa3": "FlashAttention-3",
    "fa4": "FlashAttention-4",
    "liger": "Liger",
    "quack": "QuACK",
    "quack_tuned": "QuACK, tuned",
    "cublaslt": "cuBLASLt, best of 16",
    "segments": "PyTorch, sorted edges",
    "pyg": "PyTorch Geometric",
    "onednn": "oneDNN",
    "llama": "llama.cpp",
    "packed": "Ours, forced",
    "copy": "Copy of the same bytes",
}
MARKERS = {
    "ours": "o", "torch": "s", "compile": "^", "triton": "D", "math": "x", "cudnn": "p",
    "flash": "*", "flex": "2", "fa3": "<", "fa4": ">", "liger": "v", "quack": "P",
    "quack_tuned": "1", "cublaslt": "8", "segments": "h", "pyg": "X", "onednn": "d", "packed": "H",
    "llama": "+", "foreach": "3",
}  # fmt: skip

# The text's colour; an SVG inside a page takes the page's text colour in its place.
_INK = "#1a1a1b"
_RESOLUTION = 200
_SETTINGS: Any = {
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.titlecolor": _INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#808080",
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "figure.constrained_layout.use": True,
    "svg.fonttype": "path",
    "svg.hashsalt": "transformer_kernels",
}


def colours_of_models(names: Sequence[str]) -> dict[str, str]:
    """A colour for each model; stock's runs never have that of a model with our kernels."""
    others = cycle(_OTHER_MODELS)
    return {name: _MODELS.get(name) or next(others) for name in names}


@contextmanager
def figure(
    rows: int, columns: int, width: float, height: float
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure of rows x columns panels in the project's style; draw and save it inside."""
    with matplotlib.rc_context(_SETTINGS):
        drawn = Figure(figsize=(width, height))
        yield drawn, list(drawn.subplots(rows, columns, squeeze=False).flat)


def save(drawn: Figure, folder: Path, name: str) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.{extension}" for extension in ("svg", "png")]
    for path in paths:
        drawn.savefig(path, dpi=_RESOLUTION, facecolor="white", metadata=_metadata(path))
    return paths


def inline_svg(drawn: Figure) -> str:
    """The figure as an element of an HTML page, in the page's text colour, without background.

    It shrinks with the page and is never wider than the figure's own width.
    """
    buffer = io.StringIO()
    drawn.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :].replace(_INK, "currentColor")
    text = re.sub(r' (width|height)="[\d.]+pt"', "", text, count=2)
    return text.replace("<svg", f'<svg style="max-width: {drawn.get_figwidth():g}in"', 1)


def _metadata(path: Path) -> dict[str, None]:
    """Leaves out the date, so that equal figures give equal files."""
    return {"Date": None} if path.suffix == ".svg" else {}
