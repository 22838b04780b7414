# SPDX-License-Identifier: MIT
"""``KernelProfiler``: kernels, launches, bytes, operations and gaps, on a CPU and in a GPU's
trace."""

from __future__ import annotations

import json
import time

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import register_flop_formula

import transformer_kernels as tfk
from transformer_kernels.bench import cases
from transformer_kernels.measure import watch
from transformer_kernels.measure.case import Problem
from transformer_kernels.profile import kernels, work
from transformer_kernels.profile.timing import benchmark_kernel
from transformer_kernels.profile.trace import Trace

CPU, GPU = torch.device("cpu"), torch.device("cuda")

SHAPES = {
    "attention": (2, 16, 3, 8), "embedding": (2, 5, 50, 8), "rope": (2, 16, 2, 8),
}  # fmt: skip
# The raw op of these has tables or a seed that the benchmark's case makes once.
READ_MORE = {
    (op, pass_) for op in ("rope", "rope_interleaved") for pass_ in ("forward", "backward")
}
OPS = (
    "softmax", "log_softmax", "layer_norm", "add_layer_norm", "rms_norm", "gelu", "swiglu",
    "bias_dropout_add", "bias_dropout_add_layer_norm", "cross_entropy", "embedding",
    "embedding_add", "rope", "attention", "causal_attention",
)  # fmt: skip


def _call(name: str, pass_: str, dtype: torch.dtype = torch.float32, device: str = "cpu"):
    """The benchmark's call of an op of ours, its arguments, and the shape."""
    op = cases.all_ops()[name]
    shape = SHAPES.get(op.key.partition("/")[0], (6, 16))
    with torch.no_grad():
        arguments = op.make(Problem(name, pass_, dtype, dtype, shape), torch.device(device))
    return op, op.build("ours", pass_, lambda f: f)(arguments), arguments, shape


def _profiled(call, steps: int = 1) -> kernels.KernelReport:
    with tfk.profile.KernelProfiler("cpu") as profiler:
        for _ in range(steps):
            call()
            profiler.step()
    return profiler.report


@pytest.mark.parametrize("pass_", ["forward", "backward"])
@pytest.mark.parametrize("name", OPS)
def test_bytes_and_operations_are_the_benchmarks(name, pass_):
    op, call, arguments, shape = _call(name, pass_)
    expected = op.bytes_moved(pass_, arguments)
    with torch.no_grad():
        report = _profiled(call)
        timing = benchmark_kernel(call, (), warmup=0, repeat=1, seconds=0, device="cpu")
    found = sum(row.bytes for row in report.ops)
    assert timing.bytes in (found, None)  # none where PyTorch's operators run beside ours
    if (name, pass_) in READ_MORE:
        assert expected < found < 1.2 * expected
    else:
        assert found == expected
    flops = [row.flops for row in report.ops]
    assert flops == [op.flops(pass_, shape) if op.flops else None]
    assert all(row.gbps == pytest.approx(row.bytes / row.total_us / 1e3) for row in report.ops)


@pytest.mark.parametrize("of", [torch.bfloat16, torch.float64])
def test_bytes_follow_the_dtype(of):
    op, call, arguments, _ = _call("layer_norm", "forward", of)
    (row,) = _profiled(call).ops
    assert row.bytes == op.bytes_moved("forward", arguments)


def test_a_call_unlike_the_benchmarks_moves_its_own_tensors():
    x, residual = torch.randn(8, 32), torch.randn(8, 32)
    (row,) = _profiled(lambda: tfk.functional.layer_norm(x, (32,))).ops
    assert row.bytes == 2 * x.nbytes
    (row,) = _profiled(lambda: tfk.functional.add_rms_norm(x, residual, (32,))).ops
    assert row.bytes == 4 * x.nbytes
    bias = torch.zeros(32)
    (row,) = _profiled(lambda: tfk.functional.gelu(x, bias=bias)).ops
    assert row.bytes == 2 * x.nbytes + bias.nbytes


def test_operations_of_a_window_are_not_guessed():
    q = torch.randn(1, 8, 2, 4)
    (row,) = _profiled(lambda: tfk.functional.attention(q, q, q, window=(2, 0))).ops
    assert row.flops is None
    assert row.tflops is None


@pytest.mark.parametrize("level", ["torch", "ours"])
def test_names_are_those_of_the_benchmark_of_the_levels(level):
    block = tfk.levels.Block(level, 16, 2)
    x = torch.randn(2, 5, 16, requires_grad=True)

    def both():
        return torch.autograd.grad(block(x).sum(), [x, *block.parameters()])

    report = _profiled(both, steps=3)
    found = [row.name for row in report.kernels for _ in range(row.count // 3)]
    expected = watch.operators(both).names  # in which autograd adds gradients out of place
    assert sorted(x.rstrip("_") for x in found) == sorted(x.rstrip("_") for x in expected)
    assert report.launches == 3 * len(found)


def test_launches_of_a_known_model_are_counted():
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8), tfk.nn.GELU())
    x = torch.randn(4, 8)
    with torch.no_grad():
        report = _profiled(lambda: model(x), steps=5)
    counts = {row.name: row.count for row in report.kernels}
    assert counts == {"addmm": 5, "gelu": 5, "native_layer_norm": 5, "gelu_forward": 5}
    assert (report.steps, report.launches) == (5, 20)
    assert [(row.name, row.count) for row in report.ops] == [("gelu_forward", 5)]
    assert report.busy_us <= report.window_us
    assert sum(row.share for row in report.kernels) <= 1 + 1e-6


def test_views_and_allocations_are_no_kernels():
    x = torch.randn(4, 6)
    report = _profiled(lambda: x.t().reshape(24).view(2, 12) + torch.empty(2, 12))
    assert sorted(report.names) == ["add", "clone"]


def test_the_op_of_an_exported_graph_is_its_kernels():
    x = torch.randn(4, 6)
    report = _profiled(lambda: torch.ops.transformer_kernels.relu(x, None))
    assert report.names == ["relu_forward"]
    assert report.ops[0].bytes == 2 * x.nbytes


def test_a_gap_of_the_host_is_found():
    x = torch.randn(4)

    def call():
        y = x.exp()
        time.sleep(0.05)
        return y.cos()

    gaps = _profiled(call).gaps
    assert gaps == sorted(gaps, key=lambda gap: -gap.duration_us)
    (gap,) = (gap for gap in gaps if (gap.after, gap.before) == ("exp", "cos"))
    assert gap.duration_us >= 5e4  # a busy machine may hold another one up for longer


def test_a_gpus_trace_says_what_launched_what(gpu_trace):
    report = kernels.report_of(gpu_trace, CPU)  # a CPU's: operators, whatever the trace has
    assert report.names == ["softmax_forward", "mm"]


def test_kernels_of_a_gpu(gpu_trace, monkeypatch):
    monkeypatch.setattr(kernels.machine, "device_name", lambda _: "H200")
    report = kernels.report_of(gpu_trace, GPU)
    rows = {row.name: row for row in report.kernels}
    assert list(rows) == ["gemm", "rows"]
    assert (rows["rows"].op, rows["gemm"].op) == ("softmax_forward", "mm")
    assert (rows["rows"].count, rows["gemm"].count) == (1, 2)
    assert rows["gemm"].total_us == 40.0
    assert rows["gemm"].mean_us == 20.0
    assert rows["gemm"].share == 40.0 / 200.0
    assert rows["rows"].occupancy == 0.5
    assert (rows["rows"].grid, rows["rows"].block) == ((8, 2, 1), (128, 1, 1))
    assert (rows["rows"].registers, rows["rows"].shared_memory) == (32, 1024)
    assert (report.steps, report.window_us, report.step_us) == (2, 200.0, 100.0)
    assert (report.launches, report.launch_us, report.copies) == (2, 6.0, 1)
    assert report.delay_us == 10.0  # of 4, 10 and 40
    assert report.busy_us == 20.0 + 40.0 + 10.0
    assert [(gap.duration_us, gap.after, gap.before) for gap in report.gaps] == [
        (50.0, "Memcpy DtoH", None), (30.0, None, "rows"), (30.0, "gemm", "Memcpy DtoH"),
        (20.0, "rows", "gemm"),
    ]  # fmt: skip
    (ours,) = report.ops
    assert (ours.name, ours.total_us, ours.bytes) == ("softmax_forward", 20.0, 2 * 4 * 8 * 4)
    assert ours.gbps == pytest.approx(256 / 20.0 / 1e3)
    text = report.text()
    for words in ("KERNELS (H200)", "50.0 %", "8x2x1", "1 launches a step", "10.00 us later"):
        assert words in text


def test_a_report_is_text_dicts_and_scalars():
    report = _profiled(lambda: tfk.functional.softmax(torch.randn(4, 8), -1), steps=2)
    assert "OUR OPS" in str(report)
    assert "softmax_forward" in str(report)
    assert "1 more are not shown" in report.text(rows=1)
    (record,) = report.op_records()
    assert record["name"] == "softmax_forward"
    assert {"name", "count", "total_us", "share"} <= set(report.records()[0])
    assert json.loads(json.dumps(report.as_dict()))["steps"] == 2
    assert report.scalars()["kernels/launches_per_step"] == 2


def test_an_empty_window_is_reported():
    report = _profiled(lambda: None)
    assert (report.launches, report.kernels, report.ops) == (0, [], [])
    assert len(report.gaps) == 1
    assert "0 launches" in report.text()


def test_a_decorated_function_is_profiled_at_every_call():
    profiler = tfk.profile.KernelProfiler("cpu")

    @profiler
    def run(x, times=1):
        for _ in range(times):
            x = x.exp()
        return x

    x = torch.randn(3)
    assert torch.equal(run(x), x.exp())
    assert profiler.report.launches == 1
    run(x, times=2)
    assert profiler.report.launches == 2
    assert run.__name__ == "run"


def test_a_window_that_raises_is_kept():
    profiler = tfk.profile.KernelProfiler("cpu")

    @profiler
    def fail():
        torch.ones(3).exp()
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail()
    assert "exp" in profiler.report.names
    with profiler:
        torch.ones(3).sin()
    assert "sin" in profiler.report.names


def test_traces_are_exported(tmp_path):
    profiler = tfk.profile.KernelProfiler("cpu")
    with profiler:
        tfk.functional.relu(torch.randn(4))
    for path in (
        profiler.export_chrome_trace(tmp_path / "new" / "trace.json"),
        profiler.export_tensorboard_trace(tmp_path / "runs"),
    ):
        names = [event["name"] for event in json.loads(path.read_text())["traceEvents"]]
        assert "transformer_kernels::relu_forward" in names
    assert path.name.endswith(".pt.trace.json")


def test_misuse_is_named():
    profiler = tfk.profile.KernelProfiler("cpu")
    with pytest.raises(ValueError, match="KernelProfiler: nothing was recorded, expected"):
        _ = profiler.report
    with pytest.raises(ValueError, match="KernelProfiler: step is called outside its window"):
        profiler.step()
    with pytest.raises(TypeError, match="KernelProfiler: function is int, expected a function"):
        profiler(3)
    with profiler, pytest.raises(ValueError, match="KernelProfiler: it is running, expected"):
        profiler.__enter__()
    with profiler, pytest.raises(ValueError, match="MemoryProfiler: PyTorch's profiler is running"):
        tfk.profile.MemoryProfiler("cpu").__enter__()
    with pytest.raises(ValueError, match="KernelProfiler: device is 'mps', expected 'cpu' or"):
        tfk.profile.KernelProfiler("mps")
    with pytest.raises(ValueError, match="KernelProfiler: device is 'toaster', expected"):
        tfk.profile.KernelProfiler("toaster")
    with pytest.raises(ValueError, match="rows is -1, expected at least 0"):
        _profiled(lambda: None).text(rows=-1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="device is 'cuda', expected one that PyTorch sees"):
        tfk.profile.KernelProfiler("cuda")


def test_a_trace_of_others_is_read():
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::exp", "ts": 1.0, "dur": 2.0, "pid": 1,
         "tid": 1, "args": {}},
        {"ph": "X", "cat": "cpu_op", "name": "transformer_kernels::gelu_forward", "ts": 4.0,
         "dur": 2.0, "pid": 1, "tid": 1, "args": {}},
    ]  # fmt: skip
    report = kernels.report_of(Trace(json.dumps({"traceEvents": events})), CPU)
    assert report.window_us == 5.0
    assert report.ops[0].bytes is None  # shapes were not recorded
    assert "gelu_forward" in report.text()


def test_counting_counts_products_of_matrices():
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    with work.Counting() as counted:
        tfk.functional.relu(a @ b)
    assert counted.names == ["mm", "relu_forward"]
    assert counted.flops == 2 * 3 * 4 * 5
    assert counted.bytes == 4 * (12 + 20 + 15) + 4 * 30
    assert counted.others == 1


@pytest.mark.parametrize("needed", [(True, True), (True, False), (False, True)])
def test_counting_counts_our_products(needed):
    x = torch.randn(3, 4, requires_grad=needed[0])
    weight = torch.randn(5, 4, requires_grad=needed[1])
    with work.Counting() as counted:
        y = tfk.functional.linear_act(x, weight, backend="cpu")
        y.sum().backward()
    assert "linear_act_backward" in counted.names
    assert counted.flops == 2 * 3 * 4 * 5 * (1 + sum(needed))


def test_counting_counts_products_of_quantised_weights():
    x = torch.randn(3, 4, requires_grad=True)
    packed, scales = tfk.functional.quantize_weight(torch.randn(5, 4), group_size=4)
    with work.Counting() as counted:
        tfk.functional.quantized_linear(x, packed, scales).sum().backward()
    assert counted.names.count("quantized_linear_backward") == 1
    assert counted.flops == 2 * 3 * 4 * 5 * 2


def test_counting_looks_into_ops_that_others_make_up():
    x, weight = torch.randn(6, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    with work.Counting() as counted:
        loss = tfk.functional.linear_cross_entropy(x, weight, torch.arange(6) % 5, chunk_bytes=40)
        loss.backward()
    assert counted.names.count("cross_entropy_gradient_") == 3  # chunks of two rows
    assert counted.flops == 3 * 2 * 6 * 4 * 5


@pytest.mark.parametrize("up", [True, False])
def test_counting_counts_products_that_are_no_whole_pass(up):
    x, weight = torch.randn(3, 4), torch.randn(10, 4)
    up_weight = torch.randn(10, 4) if up else None
    ops = torch.ops.transformer_kernels
    with work.Counting() as counted:
        ops.gated_linear_forward(x, weight, up_weight, None, None, 0, False)
    assert counted.flops == 2 * 3 * 4 * 10 * (1 + up)
    with work.Counting() as counted:
        ops.linear_dact(torch.randn(3, 10), weight, None, x, 0, False, True)
    assert counted.flops == 2 * 3 * 4 * 10


def test_counting_counts_products_of_another_dtype():
    x, weight = (torch.empty(4, 4, dtype=torch.bfloat16, device="meta") for _ in range(2))
    sums = torch.empty(4, 4, device="meta")
    with work.Counting() as counted:
        torch.mm(x, weight, out_dtype=sums.dtype, out=sums)
        torch.addmm(sums, x, weight, out_dtype=sums.dtype, out=sums)
    assert counted.names == ["mm", "addmm"]
    assert counted.flops == 2 * 2 * 4**3


def test_counting_takes_the_formulas_of_others():
    library = torch.library.Library("counted_here", "DEF")
    library.define("mm(Tensor x) -> Tensor")
    library.impl("mm", lambda x: x + 1, "CompositeExplicitAutograd")
    with work.Counting() as counted:
        torch.ops.counted_here.mm(torch.randn(3, 4))
    assert counted.flops == 0  # not those of PyTorch's operator of this name
    register_flop_formula(torch.ops.counted_here.mm)(lambda *_, **__: 7)
    with work.Counting() as counted:
        torch.ops.counted_here.mm(torch.randn(3, 4))
    assert counted.flops == 7


@pytest.mark.cuda
def test_a_gpu_is_traced():
    x = torch.randn(64, 256, device="cuda", dtype=torch.bfloat16)
    tfk.functional.softmax(x, -1)
    with tfk.profile.KernelProfiler() as profiler:
        for _ in range(3):
            tfk.functional.softmax(x, -1)
            profiler.step()
    report = profiler.report
    (op,) = report.ops
    assert (op.name, op.count, op.bytes) == ("softmax_forward", 3, 3 * 2 * x.nbytes)
    assert report.launches == 3
    assert report.launch_us > 0
    assert all(row.op == "softmax_forward" and row.count == 3 for row in report.kernels)
    assert all(0 <= row.occupancy <= 1 and row.registers > 0 for row in report.kernels)
    assert op.total_us == pytest.approx(sum(row.total_us for row in report.kernels))
