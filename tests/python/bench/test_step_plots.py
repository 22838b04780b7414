# SPDX-License-Identifier: MIT
"""The figures of a training step show the numbers of the result, and every provider has a look."""

from __future__ import annotations

import pytest

from transformer_kernels.bench import plots
from transformer_kernels.bench.providers import PROVIDERS
from transformer_kernels.bench.step import PARTS
from transformer_kernels.measure import style
from transformer_kernels.measure.schema import StepPart, StepTime


def texts(drawn) -> list[str]:
    panels = [text.get_text() for panel in drawn.axes for text in panel.texts]
    return [
        *panels,
        *(label.get_text() for panel in drawn.axes for label in panel.get_yticklabels()),
    ]


def test_a_race_has_a_bar_for_each_model_with_its_ratio_to_the_first(make_result):
    times = [
        StepTime("stock", 3000.0, 2900.0, 3100.0, 9, 4 * 2**30),
        StepTime("ours", 1500.0, 1400.0, 1600.0, 9, 2**30),
    ]
    result = make_result(step_times=times, settings={"model": "GPT-2", "batch": "batch 2x8"})
    assert set(plots.of(result)) == {"race"}
    with plots.of(result)["race"].figure() as drawn:
        time, memory = drawn.axes
        assert [bar.get_width() for bar in time.patches] == [3.0, 1.5]
        assert [bar.get_width() for bar in memory.patches] == [4.0, 1.0]
        assert {"3", "1.5   2.00x as fast", "4", "1   25 %"} <= set(texts(drawn))
    assert plots.of(result)["race"].caption == "A training step of GPT-2, batch 2x8"


def test_a_plot_of_forward_passes_says_so(make_result):
    times = [StepTime(name, 3e3, 2e3, 4e3, 9, 2**30) for name in ("stock", "fused", "liger")]
    settings = {"model": "Llama", "pass": "forward pass", "dtype": "bfloat16 parameters"}
    plot = plots.of(make_result(step_times=times, settings=settings))["race"]
    assert plot.caption == "A forward pass of Llama, bfloat16 parameters"
    with plot.figure() as drawn:
        assert drawn.axes[0].get_title(loc="left") == "a forward pass, ms"
        assert {"PyTorch", "tfk.fuse", "Liger"} <= set(texts(drawn))
        assert len({bar.get_facecolor() for bar in drawn.axes[0].patches}) == 3


def test_the_parts_of_a_step_add_up(make_result):
    parts = [
        StepPart(model, part, 1, 1000.0 * (i + 1) * factor, None)
        for model, factor in (("stock", 2), ("ours", 1))
        for i, part in enumerate(PARTS)
    ]
    with plots.of(make_result(step_parts=parts))["step"].figure() as drawn:
        (panel,) = drawn.axes
        ends = {bar.get_x() + bar.get_width() for bar in panel.patches}
        assert max(ends) == 30.0
        assert {"30", "15", "PyTorch", "This package"} <= set(texts(drawn))


@pytest.mark.parametrize("provider", PROVIDERS)
def test_every_provider_has_a_colour_a_name_and_a_marker(provider):
    assert provider in style.COLOURS
    assert provider in style.NAMES
    assert provider in style.MARKERS
