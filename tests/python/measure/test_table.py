# SPDX-License-Identifier: MIT
from __future__ import annotations

import re

import pytest

from transformer_kernels.bench.providers import PROVIDERS
from transformer_kernels.measure import table
from transformer_kernels.measure.schema import Ceilings, Skip

_EMPTY = """\
╔═══════════════════════════════════════════════════════════════════╗
║            TRANSFORMER KERNEL PACK BENCHMARK (Test CPU)           ║
║ microseconds per call, median; ceiling = a copy of the same bytes ║
╠═══════════════════════════════════════════════════════════════════╣
║ Kernel                                                            ║
╚═══════════════════════════════════════════════════════════════════╝"""


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split("[║│]", line)[1:-1]]


def _body(text: str) -> list[list[str]]:
    return [_cells(line) for line in text.splitlines()[6:-1]]


def test_an_empty_table_has_the_agreed_form(make_result):
    assert table.render(make_result()) == _EMPTY


def test_a_line_holds_the_figures_of_one_problem(make_row, make_result):
    rows = [make_row("copy", 90), make_row("torch", 250), make_row("compile", 125.04),
            make_row("ours", 100, pct_copy=90.0)]  # fmt: skip
    assert _body(table.render(make_result(rows))) == [
        ["layer_norm fwd bf16 8192x768", "250.0", "125.0", "100.0", "90.0 %", "1.25x"]
    ]


def test_gigabytes_per_second_on_request(make_row, make_result):
    text = table.render(make_result([make_row("torch", 100, gbps=12.34)]), unit="gbps")
    assert "GB/s" in text
    assert _body(text)[0][1] == "12.3"


@pytest.mark.parametrize("unit", ["us", "tflops"])
@pytest.mark.parametrize(
    ("name", "share"), [("bfloat16", "75.0 %"), ("float16", "75.0 %"), ("float32", "-")]
)
def test_operations_are_held_to_the_matrix_product(make_row, make_result, name, share, unit):
    rows = [make_row("ours", 10, dtype=name, tflops=600.0, pct_copy=3.0),
            make_row("ours", 10, dtype="bfloat16", tflops=400.0, shape=[1, 8])]  # fmt: skip
    ceilings = Ceilings(4000.0, 1 << 30, 800.0, 8192, "bfloat16")
    text = table.render(make_result(rows, ceilings=ceilings), unit=unit)
    assert "ceiling = a matrix product" in text
    figure = {"us": "10.0", "tflops": "600.000"}[unit]
    assert _body(text)[0][-2:] == [figure, share]
    assert _body(text)[1][-1] == "50.0 %"


def test_a_product_in_the_dtype_of_the_row_comes_first(make_row):
    ceilings = Ceilings(40.0, 1 << 28, 0.2, 1024, "float32", {"bfloat16": 0.8, "float16": 0.1})
    shares = {
        name: table.of_matmul(make_row(dtype=name, tflops=0.1), ceilings)
        for name in ("float32", "bfloat16", "float16", "float64")
    }
    assert shares == {
        "float32": pytest.approx(50), "bfloat16": pytest.approx(12.5),
        "float16": pytest.approx(100), "float64": None,
    }  # fmt: skip


def test_a_table_of_both_kinds_says_so(make_row, make_result):
    rows = [make_row("ours"), make_row("ours", op="attention", tflops=0.25, dtype="float32")]
    text = table.render(make_result(rows))
    assert "a copy of the same bytes, or a matrix product of as many operations" in text
    assert [line[-1] for line in _body(text)] == ["90.0 %", "50.0 %"]


def test_columns_that_no_line_fills_are_left_out(make_row, make_result):
    text = table.render(make_result([make_row("ours"), make_row("quack", 80)]))
    assert _cells(text.splitlines()[4]) == ["Kernel", "QuACK", "Ours", "of ceiling", "vs best"]
    assert _body(text)[0][-1] == "0.80x"
    alone = table.render(make_result([make_row("ours")]))
    assert _cells(alone.splitlines()[4]) == ["Kernel", "Ours", "of ceiling"]


def test_every_provider_has_a_column(make_row, make_result):
    text = table.render(make_result([make_row(provider) for provider in PROVIDERS]))
    assert len(_cells(text.splitlines()[4])) == len(PROVIDERS) + 3


def test_every_line_is_as_wide_as_the_box(full_result):
    lines = table.render(full_result).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert {line[0] for line in lines} <= set("╔║╠╟╚")


def test_a_long_title_widens_the_box():
    lines = table.box("A" * 60, "", [("Kernel", 6), ("x", 3)], [["a", "b"]]).splitlines()
    assert "A" * 60 in lines[1]
    assert len({len(line) for line in lines}) == 1


def test_reused_outputs_stay_out_of_the_table(make_row, make_result):
    rows = [make_row("torch", 200), make_row("torch", 10, outputs="reused"), make_row("ours")]
    assert _body(table.render(make_result(rows)))[0][1] == "200.0"


def test_our_reused_outputs_have_lines_of_their_own(make_row, make_result):
    rows = [make_row("copy", 50), *(make_row(p, t, outputs=o) for o in ("fresh", "reused")
            for p, t in (("torch", 100.0 if o == "fresh" else 80.0), ("ours", 40.0)))]  # fmt: skip
    assert [(line[0], line[-1]) for line in _body(table.render(make_result(rows)))] == [
        ("layer_norm fwd bf16 8192x768", "2.50x"),
        ("layer_norm fwd bf16 8192x768 reused", "2.00x"),
    ]


def test_mixed_weights_show_in_the_label(make_row):
    label = table.label(make_row(weight_dtype="float32", pass_="both"))
    assert label == "layer_norm fwd+bwd bf16/fp32 8192x768"


def test_a_busy_machine_has_no_ratios(make_row, make_result):
    result = make_result([make_row("torch", 250), make_row("ours", 100)], settings={"busy": "why"})
    assert _body(table.render(result)) == [["layer_norm fwd bf16 8192x768", "250.0", "100.0"]]


def test_without_us_or_a_rival_there_is_no_ratio(make_row):
    assert table.Problem({"torch": make_row("torch")}).speed_up is None
    assert table.Problem({"ours": make_row(), "copy": make_row("copy")}).speed_up is None


def test_what_was_skipped_for_one_reason_takes_one_line(make_result):
    skipped = [Skip(problem, "all", "no time") for problem in ("a", "b", "c")]
    result = make_result(skipped=[*skipped, Skip("all", "quack", "not importable")])
    assert table.skipped_lines(result) == [
        "not measured: all on a and 2 more: no time",
        "not measured: quack on all: not importable",
    ]
