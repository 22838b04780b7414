#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes the documents' pages of the ladders, docs/_generated/ladder_<step>.md: the text of a step
with its tables, the staircases of its stored times, the sources of its rungs, and its exercise."""

from __future__ import annotations

import os
import re
from pathlib import Path

from render_results import GENERATED
from setup_env import ROOT
from transformer_kernels.bench import report
from transformer_kernels.bench.plots import Plot
from transformer_kernels.tutorial import rungs, show, stairs
from transformer_kernels.tutorial.rungs import Rung

PAGES = ROOT / "docs" / "ladders"
_LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)(#[^)]*)?\)")
_LANGUAGES = {".cpp": "cpp", ".cu": "cuda", ".py": "python"}


def staircase(step: Path, kind: str) -> Plot | None:
    """The stored times of the rungs of one kind, as stairs."""
    ladder = show.stored(kind)
    return stairs.staircase(step.name, ladder) if ladder else None


def page(step: Path) -> str:
    text, _, rest = (step / "README.md").read_text().partition("<!-- /ladder -->")
    parts = [relinked(text, step), *_plots(step), "## Sources", *map(_source, rungs.rungs(step))]
    return "\n\n".join([*parts, relinked(rest, step).strip(), _exercise(step)]) + "\n"


def relinked(text: str, step: Path) -> str:
    """The text with links as the pages of ladders need them; what has no page loses its link."""

    def answer(link: re.Match[str]) -> str:
        if "://" in link[2]:
            return link[0]
        target = (step / link[2]).resolve()
        if target.is_relative_to(ROOT / "docs"):
            return f"[{link[1]}]({os.path.relpath(target, PAGES)}{link[3] or ''})"
        if target.name == "README.md" and target.parent.parent == rungs.TUTORIALS:
            return f"[{link[1]}]({target.parent.name}.md)"
        return link[1]

    return _LINK.sub(answer, text)


def _plots(step: Path) -> list[str]:
    drawn = {kind: staircase(step, kind) for kind in ("cpu", "cuda")}
    figures = [report.render_plot(f"ladder-{step.name}-{kind}", plot)
               for kind, plot in drawn.items() if plot is not None]  # fmt: skip
    return ["\n".join(["```{raw} html", *figures, "```"])] if figures else []


def _source(rung: Rung) -> str:
    fence = f"```{_LANGUAGES[rung.source.suffix]}\n{rung.kernel}\n```"
    return f":::{{dropdown}} {rung.source.name}\n{fence}\n:::"


def _exercise(step: Path) -> str:
    source = step / "exercise.cpp"
    return f":::{{dropdown}} {source.name}\n```cpp\n{Rung(source).kernel}\n```\n:::"


def write_pages() -> None:
    GENERATED.mkdir(parents=True, exist_ok=True)
    for step in rungs.steps():
        (GENERATED / f"ladder_{step.name}.md").write_text(page(step))


if __name__ == "__main__":
    write_pages()
