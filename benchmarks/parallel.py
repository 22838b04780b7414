#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Several devices on one problem, beside one device and beside PyTorch's own ways.

    torchrun --nproc-per-node 4 benchmarks/parallel.py [--parts tp,ring,norm,ddp,experts]
    torchrun --nproc-per-node 2 benchmarks/parallel.py --tiny      small enough for CPUs (gloo)

tp: a block of Llama 8B, whose heads and channels are split. ring: attention over a sequence that is
split by time. norm: a sum over the ranks, the residual and the norm. ddp: a training step of
GPT-2 124M, of as many sequences on each rank. experts: a mixture whose experts are split.

Ranks begin each sample together, and the slowest one's time counts. "one" is the same work on one
device: all ranks do it at a time, each alone, and the fastest one's time counts. What fails is
named with the reason, and the rest goes on.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import gc
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn import functional as F

import transformer_kernels as tfk
from transformer_kernels.bench import parallel as table
from transformer_kernels.bench.parallel import Clock, Times, hidden, replayed
from transformer_kernels.functional import add_rms_norm, attention, moe_dispatch
from transformer_kernels.measure import machine, schema
from transformer_kernels.measure.schema import ParallelRow, Skip
from transformer_kernels.parallel import (
    all_reduce_residual_norm,
    expert_parallel,
    parallelize,
    ring_attention,
    shard_sequence,
)

TIMEOUT = datetime.timedelta(minutes=2)  # ends a hang
OURS, TORCH = "ours", "torch"
ONE = ", one"  # ends the name of what one device does


class Sizes(NamedTuple):
    """The sizes of all parts."""

    dtype: torch.dtype = torch.bfloat16
    dim: int = 4096  # of Llama 8B
    heads: tuple[int, int] = (32, 8)  # of queries, and of keys
    inner: int = 14336
    tokens: int = 8192
    ring_tokens: int = 131072
    head_dim: int = 128
    norm_mib: tuple[int, ...] = (1, 4, 16)
    layers: int = 12  # of GPT-2
    width: int = 768
    vocabulary: int = 50304
    context: int = 1024
    batch: int = 16  # sequences of a rank
    experts: int = 128
    chosen: int = 8
    expert_dim: int = 2048
    expert_inner: int = 768
    expert_tokens: int = 16384


TINY = Sizes(
    torch.float32, 64, (8, 4), 96, 32, 64, 16, (1,), 2, 32, 64, 16, 2, 8, 2, 32, 16, 64
)  # fmt: skip


# ---- what the parts share -----------------------------------------------------------------------


class Bench:
    """The ranks, sizes and clock that parts share, and the rows that they have found."""

    def __init__(self, mesh: DeviceMesh, sizes: Sizes, seconds: float, most: int) -> None:
        self.mesh, self.sizes, self.ranks = mesh, sizes, mesh.size()
        self.device = torch.device(mesh.device_type)
        if mesh.device_type == "cuda":
            self.device = torch.device("cuda", torch.cuda.current_device())
        self.clock = Clock(self.device, seconds, most)
        self.rows: list[ParallelRow] = []
        self.skipped: list[Skip] = []

    def randn(self, *shape: int) -> Tensor:
        """Draws numbers, the same on every rank."""
        return torch.randn(*shape, device=self.device, dtype=self.sizes.dtype)

    def add(
        self,
        part: str,
        problem: str,
        provider: str,
        times: Times,
        *,
        one: Times | None = None,
        rival: Times | None = None,
        work: int = 1,
        apart: float | None = None,
        traced: Callable[[], Any] | None = None,
    ) -> None:
        """Adds a row; ``work`` is how often the ranks together did the work of one, and ``traced``
        a call whose communication may be hidden."""
        share = None
        with self.attempt(problem, f"a trace of {provider}"):
            share = None if traced is None else hidden(traced)
        row = ParallelRow(
            part=part, problem=problem, provider=provider,
            ranks=1 if provider.endswith(ONE) else self.ranks,
            dtype=str(self.sizes.dtype).removeprefix("torch."), median_ms=times.median,
            p10_ms=times.p10, p90_ms=times.p90, samples=times.samples,
            of_one=None if one is None else work * one.median / times.median,
            of_torch=None if rival is None else rival.median / times.median, apart=apart,
            hidden=share,
        )  # fmt: skip
        self.rows.append(row)
        if dist.get_rank() == 0:
            print(" | ".join(table.cells(row)), flush=True)

    @contextmanager
    def attempt(self, problem: str, provider: str) -> Iterator[None]:
        """Names what raises inside, and goes on."""
        try:
            yield
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            self.skipped.append(Skip(problem, provider, reason))
            print(f"rank {dist.get_rank()}: {problem}, {provider}: {reason}", flush=True)
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def apart(found: Tensor, expected: Tensor) -> float:
    """The largest difference, in units of the largest number."""
    with torch.no_grad():
        difference = (found.float() - expected.float()).abs().max()
        return (difference / expected.float().abs().max()).item()


# ---- a block of Llama, split by heads and channels ----------------------------------------------


class Attention(nn.Module):
    def __init__(self, dim: int, heads: tuple[int, int], head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.q = nn.Linear(dim, heads[0] * head_dim, bias=False)
        self.k = nn.Linear(dim, heads[1] * head_dim, bias=False)
        self.v = nn.Linear(dim, heads[1] * head_dim, bias=False)
        self.o = nn.Linear(heads[0] * head_dim, dim, bias=False)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = (self._heads(layer(x)) for layer in (self.q, self.k, self.v))
        q, k = (_rotated(y, cos, sin) for y in (q, k))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o(y.transpose(1, 2).flatten(2))


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class MLP(nn.Module):
    def __init__(self, dim: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(dim, inner, bias=False)
        self.up = nn.Linear(dim, inner, bias=False)
        self.down = nn.Linear(inner, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        head_dim = sizes.dim // sizes.heads[0]
        self.norm_1 = nn.RMSNorm(sizes.dim, eps=1e-5)
        self.attention = Attention(sizes.dim, sizes.heads, head_dim)
        self.norm_2 = nn.RMSNorm(sizes.dim, eps=1e-5)
        self.mlp = MLP(sizes.dim, sizes.inner)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x), cos, sin)
        return x + self.mlp(self.norm_2(x))


def _torchs_plan(block: nn.Module, mesh: DeviceMesh) -> None:
    """PyTorch's plan for such a block: activations between the layers are split by time."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor import parallel as tp

    split, whole = Shard(1), Replicate()
    tp.parallelize_module(block, mesh, {
        "norm_1": tp.SequenceParallel(),
        "attention": tp.PrepareModuleInput(
            input_layouts=(split, None, None), desired_input_layouts=(whole, None, None)
        ),
        **{f"attention.{name}": tp.ColwiseParallel() for name in "qkv"},
        "attention.o": tp.RowwiseParallel(output_layouts=split),
        "norm_2": tp.SequenceParallel(),
        "mlp": tp.PrepareModuleInput(input_layouts=(split,), desired_input_layouts=(whole,)),
        "mlp.gate": tp.ColwiseParallel(),
        "mlp.up": tp.ColwiseParallel(),
        "mlp.down": tp.RowwiseParallel(output_layouts=split),
    })  # fmt: skip


def _pass(module: nn.Module, dy: Tensor, *inputs: Any) -> Callable[[], Tensor]:
    """A forward and a backward pass, which leaves no gradients."""

    def call() -> Tensor:
        y = module(*inputs)
        y.backward(dy)
        for parameter in (*module.parameters(), *inputs):
            if isinstance(parameter, Tensor):
                parameter.grad = None
        return y.detach()

    return call


def tensor_parallel(bench: Bench) -> None:
    sizes, problem = bench.sizes, f"Llama block, T {bench.sizes.tokens}, fwd+bwd"
    with bench.device:
        stock = Block(sizes).to(sizes.dtype)
    x = bench.randn(1, sizes.tokens, sizes.dim).requires_grad_()
    dy = bench.randn(1, sizes.tokens, sizes.dim)
    half = torch.arange(0, 1, 2 * sizes.heads[0] / sizes.dim, device=bench.device)
    angles = torch.arange(sizes.tokens, device=bench.device).outer(500000.0**-half).repeat(1, 2)
    tables = angles.cos().to(sizes.dtype), angles.sin().to(sizes.dtype)
    expected = _pass(stock, dy, x, *tables)()

    whole = (stock, dy, x, *tables)
    rank = bench.mesh.get_local_rank()
    part = x.detach().chunk(bench.ranks, 1)[rank].clone().requires_grad_()

    def fused() -> tuple[Any, ...]:
        block = copy.deepcopy(stock)
        tfk.fuse(block, (x, *tables), measure=False)
        return block, *whole[1:]

    def by_torchs_plan() -> tuple[Any, ...]:
        block = copy.deepcopy(stock)
        _torchs_plan(block, bench.mesh)
        return block, dy.chunk(bench.ranks, 1)[rank].contiguous(), part, *tables

    def by_ours() -> tuple[Any, ...]:
        block, *rest = fused()
        parallelize(block, bench.mesh, inputs=(x, *tables))
        return block, *rest

    found: dict[str, Times] = {}
    for name, made, one, rival in (
        ("torch, one", lambda: whole, "", ""), ("ours, one", fused, "", ""),
        ("torch's plan", by_torchs_plan, "torch, one", ""),
        ("parallelize", by_ours, "ours, one", "torch's plan"),
    ):  # fmt: skip
        with bench.attempt(problem, name):
            call = _pass(*made())
            y = call()
            far = apart(y, expected if y.shape == expected.shape else
                        expected.chunk(bench.ranks, 1)[rank])  # fmt: skip
            for ending in ("", ", graph") if y.is_cuda else ("",):
                timed = replayed(call) if ending else call
                times = found[name + ending] = bench.clock(timed, alone=not one)
                bench.add(
                    "tp", problem + ending, name, times, one=found.get(one + ending),
                    rival=found.get(rival + ending), apart=far,
                    traced=None if ending or not one else call,
                )  # fmt: skip
            del call, timed


# ---- attention over a sequence that is split ----------------------------------------------------


def _attend(
    function: Callable[..., Tensor], tensors: Sequence[Tensor], dout: Tensor
) -> Callable[[], Tensor]:
    leaves = [x.detach().requires_grad_() for x in tensors]

    def call() -> Tensor:
        out = function(*leaves)
        torch.autograd.grad(out, leaves, dout)
        return out.detach()

    return call


def _sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def _sdpa_of_all_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _context_parallel(bench: Bench, tensors: list[Tensor], dout: Tensor) -> Times:
    """PyTorch's ring, over heads-first tensors that it splits itself."""
    from torch.distributed.tensor.experimental import context_parallel
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if bench.device.type != "cuda":
        raise RuntimeError("PyTorch's needs CUDA")
    split = [x.clone() for x in (*tensors, dout)]
    stock = F.scaled_dot_product_attention
    try:
        with (
            sdpa_kernel(SDPBackend.FLASH_ATTENTION),
            context_parallel(bench.mesh, buffers=split, buffer_seq_dims=[2] * 4,
                             no_restore_buffers={*split}),
        ):  # fmt: skip
            return bench.clock(_attend(_sdpa_of_all_heads, split[:3], split[3]))
    finally:
        F.scaled_dot_product_attention = stock  # which stays replaced where a call fails


def ring(bench: Bench) -> None:
    sizes = bench.sizes
    time_, dim, (heads, kv_heads) = sizes.ring_tokens, sizes.head_dim, sizes.heads
    problem = f"causal, T {time_}, heads {heads}/{kv_heads}, fwd+bwd"
    q, k, v, dout = (bench.randn(1, time_, n, dim) for n in (heads, kv_heads, kv_heads, heads))

    def own(x: Tensor) -> Tensor:
        return shard_sequence(x)

    by_heads = [x.transpose(1, 2).contiguous() for x in (q, k, v, dout)]
    theirs = ours = rival = expected = None
    with bench.attempt(problem, "sdpa, one"):
        theirs = bench.clock(_attend(_sdpa, by_heads[:3], by_heads[3]), alone=True)
        bench.add("ring", problem, "sdpa, one", theirs)
    with bench.attempt(problem, "attention, one"):
        call = _attend(lambda *of: attention(*of, causal=True), (q, k, v), dout)
        expected = own(call())
        ours = bench.clock(call, alone=True)
        bench.add("ring", problem, "attention, one", ours)
        del call
    with bench.attempt(problem, "context_parallel"):
        rival = _context_parallel(bench, by_heads[:3], by_heads[3])
        bench.add("ring", problem, "context_parallel", rival, one=theirs)
    del by_heads
    with bench.attempt(problem, "ring_attention"):
        parts, grad = [own(x) for x in (q, k, v)], own(dout)
        call = _attend(lambda *of: ring_attention(*of, causal=True), parts, grad)
        far = None if expected is None else apart(call(), expected)
        times = bench.clock(call)
        bench.add("ring", problem, "ring_attention", times, one=ours, rival=rival, apart=far,
                  traced=call)  # fmt: skip


# ---- a sum over ranks, the residual and the norm ------------------------------------------------


STOCK_SUM = "all_reduce, torch's"


def norm(bench: Bench) -> None:
    sizes, dim = bench.sizes, bench.sizes.dim
    # So that numbers that are summed in place, again and again, stay what they are.
    by = dist.ReduceOp.AVG if bench.device.type == "cuda" else dist.ReduceOp.SUM
    weight = torch.ones(dim, device=bench.device, dtype=sizes.dtype)
    for mib in sizes.norm_mib:
        rows = (mib << 20) // (dim * weight.element_size())
        problem = f"{mib} MiB, {rows} x {dim}"
        x, residual = bench.randn(rows, dim), bench.randn(rows, dim)

        def stock(x: Tensor = x, residual: Tensor = residual) -> Any:
            dist.all_reduce(x, by)
            total = residual + x
            return F.rms_norm(total, (dim,), weight, 1e-5), total

        def summed(x: Tensor = x, residual: Tensor = residual) -> Any:
            dist.all_reduce(x, by)
            return add_rms_norm(x, residual, (dim,), weight, eps=1e-5)

        def fused(x: Tensor = x, residual: Tensor = residual) -> Any:
            return all_reduce_residual_norm(x, residual, weight, eps=1e-5)

        found: dict[str, Times] = {}
        ways = {
            "all_reduce": lambda x=x: dist.all_reduce(x, by), STOCK_SUM: stock,
            "all_reduce, ours": summed, "all_reduce_residual_norm": fused,
        }  # fmt: skip
        with torch.no_grad():
            for name, call in ways.items():
                with bench.attempt(problem, name):
                    for ending in ("", ", graph") if x.is_cuda else ("",):
                        timed = replayed(call) if ending else call
                        times = found[name + ending] = bench.clock(timed, repeats=20)
                        rival = found.get(STOCK_SUM + ending)
                        bench.add("norm", problem + ending, name, times, rival=rival)


# ---- data parallel ------------------------------------------------------------------------------


def _step(model: nn.Module, tokens: Tensor) -> Callable[[], Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def call() -> Tensor:
        on_cuda = tokens.is_cuda
        with torch.autocast("cuda", torch.bfloat16) if on_cuda else nullcontext():
            loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return call


def data_parallel(bench: Bench) -> None:
    sizes = bench.sizes
    problem = f"GPT-2, {sizes.batch} x {sizes.context} tokens a rank"
    config = tfk.models.LanguageModelConfig(
        vocab_size=sizes.vocabulary, context=sizes.context, dim=sizes.width,
        num_layers=sizes.layers, num_heads=sizes.width // min(64, sizes.width // 2),
        tie_weights=True,
    )  # fmt: skip
    tokens = torch.randint(sizes.vocabulary, (sizes.batch, sizes.context + 1), device=bench.device)
    rival = None
    for kernels in (TORCH, OURS):
        one = None
        with bench.attempt(problem, f"{kernels}, one"):
            model = tfk.models.LanguageModel(config, kernels).to(bench.device)
            one = bench.clock(_step(model, tokens), alone=True)
            bench.add("ddp", problem, f"{kernels}, one", one)
            del model
        with bench.attempt(problem, f"{kernels}, DDP"):
            model = tfk.models.LanguageModel(config, kernels).to(bench.device)
            ids = [bench.device.index] if bench.device.type == "cuda" else None
            replicated = nn.parallel.DistributedDataParallel(
                model, ids, gradient_as_bucket_view=True
            )
            call = _step(replicated, tokens)
            times = bench.clock(call)
            bench.add("ddp", problem, f"{kernels}, DDP", times, one=one, rival=rival,
                      work=bench.ranks, traced=call)  # fmt: skip
            rival = times
            del model, replicated, call


# ---- experts ------------------------------------------------------------------------------------


class _Routed(nn.Module):
    """Experts, behind a routing that is given."""

    def __init__(self, experts: nn.Module, count: int, indices: Tensor, weights: Tensor) -> None:
        super().__init__()
        self.experts, self.count, self.indices, self.weights = experts, count, indices, weights

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.experts(x, moe_dispatch(self.indices, self.count), self.weights)
        return y


def experts(bench: Bench) -> None:
    sizes, count = bench.sizes, bench.sizes.experts
    problem = f"E {count}, top {sizes.chosen}, {sizes.expert_tokens} tokens"
    x, dy = (bench.randn(sizes.expert_tokens, sizes.expert_dim) for _ in range(2))
    scores = torch.rand(sizes.expert_tokens, count, device=bench.device)
    weights, indices = scores.topk(sizes.chosen)
    weights = weights / weights.sum(-1, keepdim=True)
    whole = tfk.nn.Experts(
        sizes.expert_dim, sizes.expert_inner, count, device=bench.device, dtype=sizes.dtype
    )
    one = expected = None
    with bench.attempt(problem, "ours, one"):
        call = _pass(_Routed(whole, count, indices, weights), dy, x.clone().requires_grad_())
        expected = call()
        one = bench.clock(call, alone=True)
        bench.add("experts", problem, "ours, one", one)
        del call
    with bench.attempt(problem, "expert_parallel"):
        rank = bench.mesh.get_local_rank()
        own = [t.chunk(bench.ranks)[rank].contiguous() for t in (x, dy, indices, weights)]
        split = expert_parallel(whole)
        call = _pass(_Routed(split, count, *own[2:]), own[1], own[0].requires_grad_())
        far = None if expected is None else apart(call(), expected.chunk(bench.ranks)[rank])
        bench.add("experts", problem, "expert_parallel", bench.clock(call), one=one, apart=far,
                  traced=call)  # fmt: skip


PARTS: dict[str, Callable[[Bench], None]] = {
    "tp": tensor_parallel, "ring": ring, "norm": norm, "ddp": data_parallel, "experts": experts,
}  # fmt: skip


# ---- the program --------------------------------------------------------------------------------


def start() -> DeviceMesh:
    """The mesh of all ranks, each with a card of its own where there are enough."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    world = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", "1")))
    if dist.is_initialized():
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    else:
        device = "cuda" if torch.cuda.device_count() >= world else "cpu"
        if device == "cuda":
            torch.cuda.set_device(local)
        dist.init_process_group("nccl" if device == "cuda" else "gloo", timeout=TIMEOUT)
    return init_device_mesh(device, (dist.get_world_size(),))


def main(arguments: Sequence[str] | None = None) -> schema.Result:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--tokens", type=int, help="of the Llama block; default 8192")
    parser.add_argument("--ring-tokens", type=int, help="default 131072")
    parser.add_argument("--batch", type=int, help="sequences of GPT-2 on a rank; default 16")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each way of each problem")
    parser.add_argument("--samples", type=int, default=30, help="the most of each")
    parser.add_argument("--tiny", action="store_true", help="sizes that CPUs can compute")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the result is written")
    given = parser.parse_args(arguments)
    parts = given.parts.split(",")
    if unknown := {*parts} - {*PARTS}:
        parser.error(f"no such parts: {', '.join(sorted(unknown))}")

    # Messages are to pass while the kernels that they were sent before keep every processor busy.
    os.environ.setdefault("TORCH_NCCL_HIGH_PRIORITY", "1")
    mesh = start()
    sizes = TINY if given.tiny else Sizes()
    chosen = {"tokens": given.tokens, "ring_tokens": given.ring_tokens, "batch": given.batch}
    sizes = sizes._replace(**{name: value for name, value in chosen.items() if value})
    bench = Bench(mesh, sizes, given.seconds, given.samples)
    for part in parts:
        torch.manual_seed(0)
        with bench.attempt(part, "all"):
            PARTS[part](bench)
    settings = {
        "ranks": str(bench.ranks), "backend": dist.get_backend(), "seconds": str(given.seconds),
    }  # fmt: skip
    result = machine.new_result(bench.device, settings, parallel=bench.rows, skipped=bench.skipped)
    if dist.get_rank() == 0:
        print(table.render(result))
        if given.json:
            schema.save(result, given.json)
    return result


if __name__ == "__main__":
    main()
    dist.barrier()
    dist.destroy_process_group()
