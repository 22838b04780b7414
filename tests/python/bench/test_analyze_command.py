# SPDX-License-Identifier: MIT
"""`transformer-kernels analyze`: predictions of stored results, other cards, pictures, refusals."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from transformer_kernels import hardware
from transformer_kernels.bench import analysis
from transformer_kernels.bench.cases import all_ops
from transformer_kernels.cli import main
from transformer_kernels.measure.schema import Row, load

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
H200, H100 = RESULTS / "h200_products.json", RESULTS / "h100_products.json"


def _row(op: str, pass_: str, shape: list[int], **other: object) -> Row:
    return Row(
        op, pass_, "bfloat16", None, shape, "ours", "fresh", 10.0, 10.0, 10.0, 9, 1000, 0.0, None,
        None, None, "CUDA graph", True, **other,
    )  # fmt: skip  # type: ignore[arg-type]


def test_attention_has_an_exponential_for_each_score() -> None:
    batch, time, heads, dim = 2, 256, 3, 64
    scores = batch * heads * time * time
    for pass_, products, exponentials in (("forward", 2, 1), ("backward", 5, 1)):
        row = _row("attention", pass_, [batch, time, heads, dim])
        plan = analysis.plan_of(row, all_ops()["attention"])
        assert plan.flops == 2 * products * scores * dim
        assert plan.exponentials == exponentials * scores
        assert plan.longest == 1 / (batch * heads * 2)


def test_a_causal_mask_makes_a_block_twice_as_long() -> None:
    row = _row("causal_attention", "forward", [1, 4096, 2, 64])
    assert analysis.plan_of(row, all_ops()["causal_attention"]).longest == 2 / 64


def test_predictions_of_stored_results(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(H200), "--what-if"]) == 0
    shown = capsys.readouterr().out
    for text in ("MACHINE (NVIDIA H200)", "PREDICTED AND MEASURED", "FARTHEST OFF", "WHAT IF"):
        assert text in shown
    compared = analysis.compare([load(H200)], analysis.machine_of([load(H200)], [load(H200)]))
    assert len(compared) == sum(row.provider == "ours" for row in load(H200).rows)
    assert f"{analysis.median_error(compared):.1%}" in shown


def test_a_card_is_predicted_from_another_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(H100), "--by", str(H200)]) == 0
    assert "NVIDIA H200, by the data sheets" in capsys.readouterr().out


@pytest.mark.parametrize("cpu", ["epyc_avx2", "epyc_avx512", "epyc_zen5", "xeon"])
def test_stored_results_of_cpus_are_predicted(cpu: str) -> None:
    """Half of the predictions are within 20 %."""
    results = [r for r in map(load, sorted(RESULTS.glob(f"{cpu}_*.json"))) if r.rows]
    compared = analysis.compare(results, analysis.machine_of(results, results))
    assert len(compared) == len(analysis.measured_in(results))
    assert analysis.median_error(compared) < 0.2


def test_rates_of_other_ops_predict_an_op_as_well() -> None:
    results = [load(RESULTS / f"epyc_avx2_{name}.json") for name in ("2cores", "attention")]
    start = hardware.cpu_of_results(results)
    errors = hardware.left_out(start, analysis.measured_in(results), "op")
    assert statistics.median(map(abs, errors)) < 0.2


def test_a_cpu_is_shown_with_what_was_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    file = RESULTS / "epyc_avx2_attention.json"
    assert main(["analyze", str(file), "--what-if", "-o", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    for text in ("fitted to the ops' times", "all ops of its kernel", "WHAT IF"):
        assert text in shown
    assert "the copy beside it took" in shown  # the reason of the worst one
    assert (tmp_path / "roofline.svg").stat().st_size > 0


def test_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    assert main(["analyze", str(H200), "-o", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    for name in ("roofline.svg", "roofline.png", "predicted.svg", "predicted.png"):
        assert (tmp_path / name).stat().st_size > 0
        assert f"wrote {tmp_path / name}" in shown


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ((H200, H100), "results of NVIDIA H100 80GB HBM3 and NVIDIA H200, expected one card"),
        (
            (RESULTS / "epyc_avx2_attention.json", RESULTS / "epyc_avx512_attention.json"),
            "results of AMD EPYC, 2 cores, AVX2 and AMD EPYC, 2 cores, AVX512, expected one",
        ),
        ((RESULTS / "h200_host.json",), "results of no op, expected one card"),
    ],
)
def test_what_cannot_be_analyzed_is_refused(
    files: tuple[Path, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", *map(str, files)]) == 2
    assert message in capsys.readouterr().err
