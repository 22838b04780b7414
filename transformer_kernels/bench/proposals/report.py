# SPDX-License-Identifier: MIT
"""All proposals together: their tables, verdicts and pictures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from transformer_kernels.bench import analysis
from transformer_kernels.bench.proposals import cache, streaming, units
from transformer_kernels.bench.proposals.traffic import Traffic
from transformer_kernels.hardware import Hardware
from transformer_kernels.measure.schema import ArrayRow, Result
from transformer_kernels.measure.table import Table

if TYPE_CHECKING:
    from transformer_kernels.bench.plots import Plot


@dataclass(frozen=True)
class Part:
    """A proposal.

    Args:
        title: of its part of a page.
        picture: the name of its plot.
    """

    title: str
    tables: Sequence[Table]
    verdict: str
    picture: str

    def __str__(self) -> str:
        return "\n".join([self.title.upper(), *map(str, self.tables), "", self.verdict, ""])


@dataclass(frozen=True)
class Report:
    """The proposals over stored results.

    Args:
        results: of one card, with copies and with attention.
        traffic: stored simulations.
        runs: of ops on the FPGA array.
    """

    results: Sequence[Result]
    traffic: Sequence[Traffic]
    runs: Sequence[ArrayRow]

    @cached_property
    def machine(self) -> Hardware:
        return analysis.machine_of(self.results, self.results)

    @cached_property
    def compared(self) -> list[analysis.Compared]:
        return analysis.compare(self.results, self.machine)

    @cached_property
    def sweeps(self) -> list[cache.Swept]:
        return cache.swept(self.traffic, self.compared)

    @cached_property
    def pipelines(self) -> list[streaming.Compared]:
        return streaming.compared()

    def parts(self) -> Iterator[Part]:
        yield Part(
            "A cache for attention's patterns",
            [cache.policy_table(self.sweeps, self.machine), cache.size_table(self.sweeps),
             cache.order_table(self.traffic)],
            cache.verdict(self.sweeps, self.traffic, self.machine), "proposal_cache",
        )  # fmt: skip
        validated = units.validate(self.compared, self.machine)
        yield Part(
            "Matrix units made for attention",
            [units.validation_table(validated, self.machine), units.exponential_table(),
             units.shape_table()],
            units.verdict(validated), "proposal_units",
        )  # fmt: skip
        recorded = streaming.recorded(self.runs)
        yield Part(
            "Streaming dataflow",
            [streaming.recorded_table(recorded), streaming.compared_table(self.pipelines)],
            streaming.verdict(self.pipelines, recorded), "proposal_streaming",
        )  # fmt: skip

    def plots(self) -> dict[str, Plot]:
        """The pictures by name; loads matplotlib."""
        from transformer_kernels.bench.proposals.plots import plots

        return plots(self.sweeps, self.pipelines, self.machine)

    def __str__(self) -> str:
        return "\n".join(map(str, self.parts()))

    def page(self) -> str:
        """A part of a page of the documentation: text, tables, and pictures as HTML."""
        from transformer_kernels.bench.report import render_plot

        pictures = self.plots()
        blocks = []
        for part in self.parts():
            drawn = render_plot(part.picture.replace("_", "-"), pictures[part.picture])
            tables = "\n".join(map(str, part.tables))
            blocks += [
                f"### {part.title}\n", f"{part.verdict}\n", f"```{{raw}} html\n{drawn}\n```\n",
                f"```text\n{tables}\n```\n",
            ]  # fmt: skip
        return "\n".join(blocks)
