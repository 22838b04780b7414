# SPDX-License-Identifier: MIT
"""The page: what stands on it, and how a browser lays it out on a telephone and on a desk."""

from __future__ import annotations

import dataclasses
import re

import pytest

from transformer_kernels import cli
from transformer_kernels.bench import plots, report
from transformer_kernels.measure import schema, style
from transformer_kernels.measure.schema import LevelCount, LevelPass, LevelRow, TrainingRun
from transformer_kernels.testing.browser import BROWSER, WIDTHS, check_layout, measured


def _level(level: str) -> LevelRow:
    passes = [LevelPass(name, 1000.0, 900.0, 1200.0, 9) for name in ("forward", "backward", "step")]
    counts = [LevelCount("both", ["a_kernel_with_a_long_name" * 4], 10_000_000, 20_000_000)]
    return LevelRow(level, "float32", [2, 9, 16], 2, True, 1e-7, passes, counts)


@pytest.fixture
def whole(full_result) -> schema.Result:
    """A result with every part that the page shows."""
    return dataclasses.replace(full_result, levels=[_level("torch"), _level("ours")])


def test_the_page_stands_alone(whole, tmp_path):
    source, page = tmp_path / "full.json", tmp_path / "report.html"
    schema.save(whole, source)
    assert cli.main(["report", str(source), "-o", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    panels = sum(len(plot.panels) for plot in plots.of(whole).values())
    assert text.count("<svg") == panels == 2 + 6 + 4 + 1  # loss, levels, bandwidth, speed-up
    assert not re.search(r'(src|href)="(?!#)', text.replace('xlink:href="#', ""))
    assert "GPT-2 &lt;tiny&gt;" in text
    assert "a sample &amp; more" in text
    assert '<th scope="row">layer_norm fwd bf16 1024x768</th>' in text
    assert '<td data-name="vs best">' in text
    assert "softmax, without gradient" in text
    assert "runs on a GPU only" in text
    assert "prefers-color-scheme: dark" in text
    assert "#1a1a1b" not in text  # the figures take the text colour of the page


def test_the_page_of_an_empty_result(make_result):
    text = report.render(make_result(ceilings=None))
    assert "<svg" not in text
    assert "Test CPU" in text


def test_a_page_without_a_sample_has_no_heading_for_it(whole):
    training = dataclasses.replace(whole.training, sample="")
    assert "What the model writes" not in report.render(
        dataclasses.replace(whole, training=training)
    )


def test_stock_is_never_coloured_as_ours(whole):
    names = ["stock", "stock again", "ours"]
    colours = style.colours_of_models(names)
    assert len(set(colours.values())) == 3
    assert colours["ours"] == style.COLOURS["ours"]
    runs = [TrainingRun(name, [2.0, 1.0], 10.0) for name in names]
    training = dataclasses.replace(whole.training, runs=runs)
    for _, drawn in plots.loss_curves(training).alone():
        assert drawn.items() <= colours.items()
    text = report.render(dataclasses.replace(whole, training=training))
    for name, colour in colours.items():
        key = f'<span class="key" style="background: {colour}"></span>training, {name}</dt>'
        assert key in text


# Measures the pictures of a page, and sorts one of its tables.
_SCRIPT = """
const table = page.querySelectorAll(".sortable")[1];
const heading = [...table.querySelectorAll("button")].find((e) => e.textContent === "Ours");
const orders = [0, 1].map(() => {
  heading.click();
  const cells = table.querySelectorAll("td[data-name=Ours]");
  return [...cells].map((cell) => parseFloat(cell.textContent));
});
const svgs = all.filter((e) => e.tagName === "svg");
return {pictures: svgs.map((e) => e.getBoundingClientRect().width), orders};
"""


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium (apt-get install chromium)")
def test_nothing_scrolls_sideways_and_tables_sort(whole, tmp_path):
    for seen, width in zip(measured(report.render(whole), _SCRIPT, tmp_path), WIDTHS, strict=True):
        check_layout(seen, width)
        natural = [96 * plot.width for plot in plots.of(whole).values() for _ in plot.panels]
        assert len(seen["pictures"]) == len(natural)
        for shown_width, most in zip(seen["pictures"], natural, strict=True):
            assert 300 < shown_width <= min(most, width) + 0.5  # legible, and not blown up
        falling, rising = seen["orders"]
        assert falling == sorted(falling, reverse=True) != rising == sorted(rising)
