# SPDX-License-Identifier: MIT
"""`transformer-kernels profilers`: its measurements and file, and the arguments it refuses."""

from __future__ import annotations

from transformer_kernels import cli
from transformer_kernels.bench import profilers
from transformer_kernels.measure import ceilings, schema


def test_costs_and_agreement_are_measured_and_stored(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(profilers, "_OPS", ("softmax",))
    monkeypatch.setattr(profilers, "_SHAPES", {"cpu": [(8, 64)]})
    monkeypatch.setattr(profilers, "_SECONDS", 0.0)
    monkeypatch.setattr(profilers, "_STEPS", 2)
    monkeypatch.setitem(ceilings._COPY_BYTES, "cpu", 1 << 20)
    monkeypatch.setitem(ceilings._MATMUL_SIZE, "cpu", 64)
    monkeypatch.setattr(ceilings, "_SECONDS", 0.0)
    path = tmp_path / "profilers.json"
    arguments = ["profilers", "--device", "cpu", "--rounds", "1", "--json", str(path)]
    assert cli.main(arguments) == 0
    result = schema.load(path)
    names = ["GPUProfiler", "KernelProfiler", "MemoryProfiler"]
    assert [row.profiler for row in result.profilers] == names
    for row in result.profilers:
        assert row.launches > 20
        assert min(row.plain_us, row.profiled_us, row.window_us) > 0
        assert row.launch_us == (row.profiled_us - row.plain_us) / row.launches
    (agreement,) = result.agreement
    assert (agreement.op, agreement.shape) == ("softmax", [8, 64])
    assert agreement.ratio == agreement.profile_us / agreement.bench_us
    text = capsys.readouterr().out
    assert text == profilers.render(result) + "\n"
    assert "softmax fwd fp32 8x64" in text


def test_no_rounds_are_refused(capsys):
    assert cli.main(["profilers", "--rounds", "0"]) == 2
    assert "--rounds is 0, expected at least 1" in capsys.readouterr().err
