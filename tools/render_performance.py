#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Fills PERFORMANCE.md from benchmarks/results and tutorials/results, and draws its pictures;
build_docs.py has it write docs/_generated/guide_fusions.md as well, a guide's table.

    render_performance.py            writes PERFORMANCE.md's tables and docs/pictures/ladder_*.svg
    render_performance.py --check    fails where one of them differs from what would be written

The document asks for a table with two lines; the text between them is replaced. Beside the requests
of render_results.py there are two, each with the names of results, and `*` for any text in them:

    <!-- rivals: h200.json h200_attention.json -->   our times beside those of the rivals
    <!-- slower: h200*.json -->                      the problems in which a rival is faster
"""

from __future__ import annotations

import argparse
import hashlib
import re
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from render_results import GENERATED, RESULTS, filled
from render_tutorials import staircase
from setup_env import ROOT
from transformer_kernels.measure import style
from transformer_kernels.measure.schema import Ceilings, Result, load
from transformer_kernels.measure.statistics import geometric_mean
from transformer_kernels.measure.table import Problem, problems
from transformer_kernels.tutorial import rungs, show

DOCUMENT = ROOT / "PERFORMANCE.md"
PICTURES = ROOT / "docs" / "pictures"
PREDICTIONS = "epyc_zen5_fused_predictions.json"  # of the sites that the fuser finds
NOISE = 1.03  # a rival that is faster by less counts as equal
SHOWN = 12  # ops and passes in which a rival is faster
_REQUEST = re.compile(
    r"^<!-- (?P<kind>rivals|slower): (?P<files>[^\n]+) -->\n.*?^<!-- /(?P=kind) -->$",
    re.MULTILINE | re.DOTALL,
)
_DIGEST = re.compile(r"sha256:\w+")


def results(patterns: str, folder: Path = RESULTS) -> list[Result]:
    """The results of the names, in their order.

    Raises:
        ValueError: a name stands for no file.
    """
    found: list[Result] = []
    for pattern in patterns.split():
        paths = sorted(folder.glob(pattern))
        if not paths:
            raise ValueError(f"PERFORMANCE.md asks for {pattern}, which no result has as its name")
        found += [load(path) for path in paths]
    return found


def rivals(found: Sequence[Result]) -> str:
    """A line for each op and dtype: our share of the ceiling, and times of rivals over ours, for
    each pass."""
    groups: dict[tuple[str, str], dict[str, list[Compared]]] = {}
    for result in found:
        for problem in problems(result.rows):
            if problem.speed_up is not None:
                row = problem.any_row
                passes = groups.setdefault((row.op, row.dtype), {})
                passes.setdefault(row.pass_, []).append(Compared(problem, result.ceilings))
    lines = ["| op | dtype | pass | problems | of ceiling | PyTorch | best rival | least |",
             "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |"]  # fmt: skip
    for key, passes in groups.items():
        cells = [" / ".join(cell) for cell in zip(*map(_means, passes.values()), strict=True)]
        lines.append(f"| {' | '.join([*key, ' / '.join(passes), *cells])} |")
    return "\n".join([*lines, "", _provenance(found), ""])


@dataclass(frozen=True)
class Compared:
    """A problem that a rival solved as well, and the ceilings of its run."""

    problem: Problem
    ceilings: Ceilings | None

    @property
    def share(self) -> float | None:
        """Our percent of the ceiling: of a matrix product where arithmetic bounds the op."""
        ours = self.problem.ours
        if ours is None or ours.tflops is None:
            return ours.pct_copy if ours else None
        product = self.ceilings.product_tflops(ours.dtype) if self.ceilings else None
        return 100 * ours.tflops / product if product else None


def _means(group: Sequence[Compared]) -> tuple[str, ...]:
    gains = [c.problem.speed_up for c in group if c.problem.speed_up is not None]
    stock = [c.problem.rows["torch"].median_us / c.problem.rows["ours"].median_us
             for c in group if "torch" in c.problem.rows]  # fmt: skip
    shares = [c.share for c in group if c.share is not None]
    return (
        str(len(group)),
        f"{statistics.median(shares):.0f} %" if shares else "-",
        f"{geometric_mean(stock):.2f}" if stock else "-",
        f"{geometric_mean(gains):.2f}",
        f"{min(gains):.2f}",
    )


def slower(found: Sequence[Result]) -> str:
    """A line for each op, pass and machine with problems in which a rival is faster than we are,
    the worst first; and how many problems that are of all."""
    groups: dict[tuple[str, str, str], list[Problem]] = {}
    for result in found:
        for problem in problems(result.rows):
            if problem.speed_up is not None:
                row = problem.any_row
                key = (row.op, row.pass_, result.machine.device_name)
                groups.setdefault(key, []).append(problem)
    lost = {key: [p for p in group if _gain(p) * NOISE < 1] for key, group in groups.items()}
    worst = sorted((key for key in lost if lost[key]), key=lambda key: min(map(_gain, lost[key])))
    lines = ["| op | pass | machine | slower | worst | shape, dtype | rival |",
             "| --- | --- | --- | ---: | ---: | --- | --- |"]  # fmt: skip
    lines += [_lost(key, lost[key], len(groups[key])) for key in worst[:SHOWN]]
    every, some = sum(map(len, groups.values())), sum(map(len, lost.values()))
    told = (
        f"A rival is faster in {some} of {every} problems; the table has the {SHOWN} ops and passes"
    )
    return "\n".join([*lines, "", f"{told}\nof {len(worst)} in which it is most.", ""])


def _gain(problem: Problem) -> float:
    return problem.speed_up or 1.0


def _lost(key: tuple[str, str, str], lost: Sequence[Problem], of: int) -> str:
    problem = min(lost, key=_gain)
    rival, row = problem.best_rival, problem.any_row
    assert rival is not None
    shape = "x".join(map(str, row.shape))
    cells = [*key, f"{len(lost)} of {of}", f"{_gain(problem):.2f}", f"{shape}, {row.dtype}",
             style.NAMES[rival.provider]]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def fusions(result: Result) -> str:
    """A line for each pattern of the fuser: the least and the largest gain of its sites, in both
    passes and without gradients, measured and as predicted from the times of operations."""
    lines = ["| pattern | sites | gain, both passes | predicted | gain, forward | predicted |",
             "| --- | ---: | ---: | ---: | ---: | ---: |"]  # fmt: skip
    for pattern in dict.fromkeys(row.pattern for row in result.predictions):
        cells = []
        for pass_ in ("both", "forward"):
            rows = [r for r in result.predictions if (r.pattern, r.pass_) == (pattern, pass_)]
            cells.append(_range([row.stock_us / row.ours_us for row in rows]))
            cells.append(_range([r.predicted_stock_us / r.predicted_ours_us for r in rows]))
        sites = sum(row.pattern == pattern and row.pass_ == "both" for row in result.predictions)
        lines.append(f"| `{pattern}` | {sites} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", _provenance([result]), ""])


def _range(gains: Sequence[float]) -> str:
    return f"{min(gains):.2f} to {max(gains):.2f}" if gains else "-"


def write_guide() -> None:
    GENERATED.mkdir(parents=True, exist_ok=True)
    (GENERATED / "guide_fusions.md").write_text(fusions(load(RESULTS / PREDICTIONS)))


def _provenance(found: Sequence[Result]) -> str:
    machines = dict.fromkeys((r.machine.device_name, r.date[:10]) for r in found)
    return f"Measured on {'; '.join(f'{name}, {date}' for name, date in machines)}."


def written(text: str, folder: Path = RESULTS) -> str:
    """The document with its tables."""

    def answer(request: re.Match[str]) -> str:
        make = rivals if request["kind"] == "rivals" else slower
        head = request[0].split("\n", 1)[0]
        return f"{head}\n{make(results(request['files'], folder))}<!-- /{request['kind']} -->"

    return filled(_REQUEST.sub(answer, text), folder)


def pictures() -> Iterator[tuple[Path, Path, str]]:
    """The file, step and kind of each staircase that has stored times."""
    for step in rungs.steps():
        for kind in ("cpu", "cuda"):
            if staircase(step, kind) is not None:
                yield PICTURES / f"ladder_{step.name.partition('-')[0]}_{kind}.svg", step, kind


def _digest(step: Path, kind: str) -> str:
    """The digest of what a picture shows, which its file names."""
    ladder = show.stored(kind)
    assert ladder is not None
    shown = (ladder.machine, ladder.date, ladder.lines[step.name])
    return f"sha256:{hashlib.sha256(repr(shown).encode()).hexdigest()}"


def draw(path: Path, step: Path, kind: str) -> None:
    plot = staircase(step, kind)
    assert plot is not None
    path.parent.mkdir(exist_ok=True)
    with plot.figure() as drawn:
        drawn.suptitle(plot.caption, fontsize=7.5)
        about = {"Date": None, "Description": _digest(step, kind)}
        drawn.savefig(path, facecolor="white", metadata=about)


def stale() -> list[str]:
    """The names of files that would be written otherwise."""
    found = [] if written(DOCUMENT.read_text()) == DOCUMENT.read_text() else [DOCUMENT.name]
    for path, step, kind in pictures():
        drawn = _DIGEST.search(path.read_text()) if path.exists() else None
        if drawn is None or drawn[0] != _digest(step, kind):
            found.append(path.name)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the tables and pictures of PERFORMANCE.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail on a difference")
    if parser.parse_args().check:
        old = stale()
        print(f"[performance] {', '.join(old) or 'nothing'} is older than its results")
        return int(bool(old))
    DOCUMENT.write_text(written(DOCUMENT.read_text()))
    for path, step, kind in pictures():
        draw(path, step, kind)
    return 0


if __name__ == "__main__":
    sys.exit(main())
