# SPDX-License-Identifier: MIT
"""Steps of whole models: what they call, and what other machines would give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from transformer_kernels.bench import analysis, steps
from transformer_kernels.bench.families import FAMILIES
from transformer_kernels.cli import main
from transformer_kernels.hardware import DATASHEETS, Plan, predict
from transformer_kernels.measure.schema import Result, load

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
CARD = DATASHEETS["H200"]


@pytest.mark.parametrize(
    ("name", "millions"), [("gpt2", 124), ("gpt2-medium", 355), ("qwen3", 596)]
)
def test_a_model_has_the_parameters_that_its_name_says(name: str, millions: int) -> None:
    assert steps.parameters(FAMILIES[name]) / 1e6 == pytest.approx(millions, rel=0.01)


@pytest.mark.parametrize("name", steps.DECODERS)
def test_products_are_six_for_each_parameter_and_token_and_those_of_attention(name: str) -> None:
    family = FAMILIES[name]
    size = family.full
    tokens = size.batch * size.tokens
    tables = size.vocabulary * size.width * (2 if family.kind == "llama" else 1)
    multiplied = steps.parameters(family) - tables + size.vocabulary * size.width
    width = size.heads * (size.head_dim or size.width // size.heads)
    attention = size.layers * 7 * tokens * size.tokens * width  # of causal scores, in both passes
    flops = sum(call.plan.flops * call.count for call in steps.step_of(name).calls)
    assert flops == pytest.approx(6 * multiplied * tokens + attention, rel=0.01)


def test_a_step_is_the_sum_of_its_calls() -> None:
    step = steps.moe_step()
    once = replace(step, calls=step.calls[:1]).us(CARD)
    rest = replace(step, calls=step.calls[1:]).us(CARD)
    assert step.us(CARD) == pytest.approx(once + rest)
    assert sum(step.parts(CARD).values()) == pytest.approx(step.us(CARD))


def test_no_change_makes_a_step_slower() -> None:
    step = steps.step_of("gpt2")
    for name, change in steps.CHANGES.items():
        assert step.us(change(CARD)) < step.us(CARD), name


def test_products_of_eight_bits_leave_other_ops_as_they_are() -> None:
    step = steps.step_of("gpt2")
    changed = steps.in_eight_bits(step)
    for before, after in zip(step.calls, changed.calls, strict=True):
        assert before.count == after.count
        wanted = before.plan.bytes // 2 if before.plan.flops else before.plan.bytes
        assert after.plan.bytes == wanted
    found = steps.speed_ups(step, CARD)
    assert found["products twice as fast"] < found["products of 8 bits"] < 2


def test_steps_meet_the_stored_times_of_their_model_and_batch() -> None:
    results = [load(RESULTS / "h200_fused_gpt2.json"), load(RESULTS / "h200_fused_llama.json")]
    found = {name: steps.measured(steps.step_of(name), results) for name in steps.DECODERS}
    assert found["gpt2"] == next(t for t in results[0].step_times if t.model == "fused, graphs")
    assert found["llama"] == next(t for t in results[1].step_times if t.model == "fused, graphs")
    assert found["qwen3"] is None


def _with_times(times: Mapping[tuple[int, ...], float]) -> Result:
    """The stored result of linear layers, with these times of ours in their place."""
    stored = load(RESULTS / "h200_linear.json")
    row = next(r for r in stored.rows if r.provider == "ours" and r.op == "linear")
    rows = [replace(row, pass_="forward", dtype="bfloat16", shape=list(shape), median_us=us,
                    bytes=_plan(shape).bytes) for shape, us in times.items()]  # fmt: skip
    return replace(stored, rows=rows)


def _plan(shape: tuple[int, ...]) -> Plan:
    return steps.plan_of("linear", shape, "forward", "bfloat16")


def test_corrections_are_those_of_the_last_dimension_or_of_the_whole_op() -> None:
    factors: dict[tuple[int, ...], float] = {
        (8192, 1024, 768): 1.2,
        (16384, 1024, 768): 1.6,
        (8192, 1024, 2048): 3.0,
    }
    times = {shape: by * predict(_plan(shape), CARD).us for shape, by in factors.items()}
    corrections = steps.Corrections([_with_times(times)], CARD)
    assert corrections.longer("linear", "forward", 768) == pytest.approx(1.4)
    assert corrections.longer("linear", "forward", 2048) == pytest.approx(3.0)
    assert corrections.longer("linear", "forward", 512) == pytest.approx(1.6)  # of all three
    assert corrections.longer("linear", "backward", 768) == 1


def test_corrected_steps_add_up_what_their_ops_take() -> None:
    class Doubled(steps.Corrections):
        def longer(self, op: str, pass_: str, columns: int) -> float:
            return 2.0 if (op, pass_, columns) == ("dropout_attention", "backward", 64) else 1.0

    step = steps.step_of("gpt2")
    corrected = Doubled([], CARD).corrected(step)
    more = corrected.us(CARD) - step.us(CARD)
    (call,) = [c for c in step.calls if c.of == ("dropout_attention", "backward", 64)]
    assert more == pytest.approx(call.us(CARD))
    assert sum(corrected.parts(CARD).values()) == pytest.approx(corrected.us(CARD))


def test_ops_that_take_no_time_but_their_launch_correct_nothing() -> None:
    corrections = steps.Corrections([_with_times({(1, 8, 8): 1e3})], CARD)
    assert corrections.longer("linear", "forward", 8) == 1


def test_corrected_steps_are_nearer_to_what_was_measured() -> None:
    results = [load(path) for path in sorted(RESULTS.glob("h200*.json"))]
    with_rows = [result for result in results if result.rows]
    machine = analysis.machine_of(with_rows, with_rows)
    corrections = steps.Corrections(with_rows, machine)
    found = {name: steps.step_of(name) for name in steps.DECODERS}
    median = steps.validation_table(found, [(machine, results)], corrections).body[-1]
    assert median[0] == "median of 4"
    alone, corrected = (int(cell.rstrip("%")) for cell in (median[4], median[6]))
    assert corrected < alone / 2


def test_cards_are_compared_by_their_ratio() -> None:
    on_h200, on_h100 = (load(RESULTS / f"{card}_fused_gpt2.json") for card in ("h200", "h100"))
    machines = [(CARD, [on_h200]), (DATASHEETS["H100"], [on_h100])]
    (row,) = steps.ratio_table({"gpt2": steps.step_of("gpt2")}, machines).body
    times = [steps.measured(steps.step_of("gpt2"), [result]) for result in (on_h100, on_h200)]
    assert times[0] is not None
    assert times[1] is not None
    assert row[1] == f"{times[0].median_us / times[1].median_us:.2f}x"


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    files = [RESULTS / f"h200_{name}.json" for name in ("products", "fused_qwen3")]
    assert main(["analyze", *map(str, files), "--steps"]) == 0
    shown = capsys.readouterr().out
    for text in ("STEPS OF TRAINING", "Qwen3, 28 layers", "WHAT IF", "multiprocessors", "B200"):
        assert text in shown


def test_bars() -> None:
    pytest.importorskip("matplotlib")
    from transformer_kernels.bench.steps_plots import what_if

    plot = what_if({"moe": steps.moe_step()}, CARD)
    wanted = steps.speed_ups(steps.moe_step(), CARD)
    assert wanted["H200"] == pytest.approx(1)
    with plot.figure() as drawn:
        (panel,) = drawn.axes
        texts = [text.get_text() for text in panel.texts]
    assert texts == [f" {value:.2f}x" for value in reversed(wanted.values())]
