# SPDX-License-Identifier: MIT
"""torch.compile with our backend: the graph's results, what was replaced, and what was left."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn import functional as F

import transformer_kernels as tfk
from transformer_kernels.fuse import registry
from transformer_kernels.fuse.backend import compile_graph
from transformer_kernels.fuse.graph.decide import DECISIONS
from transformer_kernels.fuse.graph.patterns import ALL

from .zoo.compare import assert_close, forward, train
from .zoo.compiling import without_cache
from .zoo.families import BY_NAME

NAMES = {pattern.name for pattern in ALL}

# The least that is found in a family, two layers each.
LEAST = {
    "gpt2": {"attention": 2, "mlp": 2, "sum_norm": 4, "loss": 1},
    "llama": {"attention": 2, "gated_mlp": 2, "sum_norm": 4, "loss": 1},
    "gemma2": {"attention": 2, "gated_mlp": 2, "sum_norm": 4, "norm": 5, "loss": 1},
    "opt": {"attention": 2, "mlp": 2, "sum_norm": 4, "loss": 1},
    "falcon alibi": {"attention": 2, "mlp": 2, "sum_norm": 4, "loss": 1},
    "t5": {"attention": 6, "mlp": 4, "sum_norm": 10, "loss": 1},
    "whisper": {"attention": 6, "mlp": 4, "sum_norm": 10, "loss": 1},
    "timm swin": {"attention": 4, "mlp": 4, "sum_norm": 4},
    "nn encoder": {"attention": 2, "mlp": 2, "sum_norm": 4},
}


@pytest.fixture(autouse=True)
def _nothing_compiled():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(function, then="eager", **options):
    options = {"then": then, "decide": False, **options}
    return torch.compile(function, backend="transformer_kernels", options=options)


def counts():
    """The places of each pattern, in the graphs of the last call."""
    total = {}
    for plan in tfk.graph_plans():
        for name, count in plan.counts().items():
            total[name] = total.get(name, 0) + count
    return total


@pytest.fixture(autouse=True)
def _no_plans():
    from transformer_kernels.fuse import backend

    backend._plans.clear()


def graph_of(function, *inputs, **options):
    """The names of the functions that the rewritten graph calls, and the result."""
    called = []

    def then(module, _inputs):
        called.extend(getattr(n.target, "__name__", n.target) for n in module.graph.nodes)
        return module.forward

    result = compiled(function, then, **options)(*inputs)
    return called, result


# ---- models -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LEAST)
def test_a_model_trains_as_eager_code_does(name):
    family = BY_NAME[name]
    model = family.build().train()
    inputs = without_cache(family.inputs(), model)
    stock = train(model, inputs)
    ours = train(compiled(model), inputs)
    assert_close({n.replace("_orig_mod.", ""): x for n, x in ours.items()}, stock)
    found = counts()
    lacking = {k: n for k, n in LEAST[name].items() if found.get(k, 0) < n}
    assert not lacking, f"expected at least {lacking}, found {found}\n{tfk.graph_plans()}"


def test_the_plan_names_places_and_reasons():
    family = BY_NAME["nn encoder"]
    model = family.build(dropout=0.5).train()
    compiled(model, patterns=["attention", "dropout_norm", "mlp"])(**family.inputs())
    plan = tfk.graph_plans()[-1]
    assert "layers.1.self_attn" in {site.path for site in plan.sites}
    assert {site.function for site in plan.sites} == {
        "functional.attention", "functional.bias_dropout_add_layer_norm",
    }  # fmt: skip
    assert plan.trains
    assert "attention: 2 x functional.attention" in str(plan)


def test_inference_runs_without_gradients():
    family = BY_NAME["opt"]
    model = family.build()
    inputs = without_cache(family.inputs(), model)
    assert_close(forward(compiled(model), inputs), forward(model, inputs))
    assert not tfk.graph_plans()[-1].trains
    assert counts()["attention"] == 2


def test_inductor_compiles_the_rest():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 2, 64, 0.0, batch_first=True).train()
    x = torch.randn(2, 16, 32)
    stock = train(layer, {"src": x})
    ours = train(compiled(layer, "inductor"), {"src": x})
    assert_close({n.replace("_orig_mod.", ""): y for n, y in ours.items()}, stock)
    assert counts()["attention"] == 1


# ---- attention ----------------------------------------------------------------------------------


def heads(*shape, grad=True):
    return torch.randn(*shape, requires_grad=grad)


def written_out(q, k, v, bias=None, cap=0.0, dropout=0.0):
    scores = torch.matmul(q, k.transpose(-2, -1)) / q.shape[-1] ** 0.5
    if cap:
        scores = cap * torch.tanh(scores / cap)
    if bias is not None:
        scores = scores + bias
    weights = F.dropout(scores.softmax(-1), dropout)
    return torch.matmul(weights, v)


@pytest.mark.parametrize("cap", [0.0, 3.0])
@pytest.mark.parametrize("rank", [3, 4])
def test_attention_written_out(rank, cap):
    shape = (2, 3, 11, 16)[-rank:]
    q, k, v = (heads(*shape) for _ in range(3))
    bias = heads(*shape[1:-1], 11)
    called, y = graph_of(lambda *x: written_out(*x, cap=cap), q, k, v, bias)
    assert "attend_transposed" in called
    assert "softmax" not in called
    leaves = [q, k, v, bias]
    wanted = written_out(*leaves, cap=cap)
    dy = torch.randn_like(wanted)
    torch.testing.assert_close(y, wanted, rtol=1e-4, atol=1e-5)
    found = torch.autograd.grad(y, leaves, dy)
    for ours, stock in zip(found, torch.autograd.grad(wanted, leaves, dy), strict=True):
        torch.testing.assert_close(ours, stock, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("window", [-1, 4])
def test_a_mask_that_no_input_decides_is_known(window):
    """A causal mask made of positions costs neither memory nor the half of the scores."""

    def attend(q, k, v):
        distance = torch.arange(9) - torch.arange(9)[:, None]
        seen = (distance <= 0) & ((distance >= -window) if window > 0 else True)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen.expand(2, 1, 9, 9))

    q, k, v = (heads(2, 3, 9, 16) for _ in range(3))
    called, y = graph_of(attend, q, k, v)
    assert "arange" not in called
    torch.testing.assert_close(y, attend(q, k, v), rtol=1e-4, atol=1e-5)


def test_a_mask_that_an_input_decides_is_read():
    def attend(q, k, v, length):
        seen = torch.arange(9) < length[:, None, None, None]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)

    q, k, v = (heads(2, 3, 9, 16) for _ in range(3))
    for length in (torch.tensor([4, 9]), torch.tensor([7, 2])):
        called, y = graph_of(attend, q, k, v, length)
        torch.testing.assert_close(y, attend(q, k, v, length), rtol=1e-4, atol=1e-5)
    assert "arange" in called


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("is_seen", [False, True])
def test_scores_that_a_mask_sets(is_seen, is_known):
    def attend(q, k, v, mask):
        mask = torch.ones(9, 9, dtype=torch.bool).tril() if is_known else mask
        scores = q @ k.transpose(-2, -1)
        fill = torch.where if is_seen else (lambda m, x, c: x.masked_fill(~m, c))
        return torch.matmul(fill(mask, scores, -1e30).softmax(-1), v)

    q, k, v = (heads(2, 3, 9, 16) for _ in range(3))
    mask = torch.rand(2, 1, 9, 9) < 0.5
    mask[0, 0, 3] = False  # a query that sees no key weighs all alike
    called, y = graph_of(attend, q, k, v, mask)
    assert "attend_transposed" in called
    assert ("hiding" in called) is not is_known
    torch.testing.assert_close(y, attend(q, k, v, mask), rtol=1e-4, atol=1e-5)


def in_windows(q, k, v, bias, mask):
    """Swin's: windows of an image, each with a mask of its own, and biases of heads."""
    batch, num_heads, time = q.shape[:3]
    scores = (q * 0.3) @ k.transpose(-2, -1) + bias.unsqueeze(0)
    scores = scores.view(-1, mask.shape[0], num_heads, time, time) + mask.unsqueeze(1).unsqueeze(0)
    return torch.matmul(scores.view(batch, num_heads, time, time).softmax(-1), v)


def of_cosines(q, k, v, bias, mask):
    """Swin v2's: each head has a scale, which is learned."""
    scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
    scale = bias.mean((-2, -1), keepdim=True).exp()
    return torch.matmul((scores * scale + F.relu(bias * 2, inplace=True)).softmax(-1), v)


def in_place(q, k, v, bias, mask):
    """Falcon's with ALiBi: scaled behind the bias, in place, and softmax in float32."""
    batch, num_heads, time = q.shape[:3]
    scores = (q @ k.transpose(-2, -1)).view(batch, num_heads, time, time)
    scores = scores.to(torch.float32) + bias
    scores *= 0.3
    weights = F.softmax(scores + mask[:1], dim=-1, dtype=torch.float32).to(q.dtype)
    weights = F.dropout(weights, 0.0)
    return weights.view(batch, num_heads, time, time) @ v


@pytest.mark.parametrize("attend", [in_windows, of_cosines, in_place])
def test_scores_as_models_make_them(attend):
    leaves = [*(heads(6, 2, 9, 16) for _ in range(3)), heads(2, 9, 9)]
    mask = torch.where(torch.rand(3, 9, 9) < 0.3, -100.0, 0.0)
    called, y = graph_of(attend, *leaves, mask)
    assert "attend_transposed" in called
    assert {"softmax", "imul", "matmul"}.isdisjoint(called)
    wanted = attend(*leaves, mask)
    torch.testing.assert_close(y, wanted, rtol=1e-4, atol=1e-5)
    dy = torch.randn_like(wanted)
    found = torch.autograd.grad(y, leaves, dy)
    for ours, stock in zip(found, torch.autograd.grad(wanted, leaves, dy), strict=True):
        torch.testing.assert_close(ours, stock, rtol=1e-3, atol=1e-4)


def test_windows_of_several_batches():
    """One graph serves batches of any size, each of which repeats the windows."""
    ours = compiled(in_windows)
    bias, mask = heads(2, 9, 9), torch.where(torch.rand(3, 9, 9) < 0.3, -100.0, 0.0)
    for batch in (6, 12, 9):
        q, k, v = (heads(batch, 2, 9, 16) for _ in range(3))
        for x in (q, k, v):
            torch._dynamo.mark_dynamic(x, 0)
        wanted = in_windows(q, k, v, bias, mask)
        torch.testing.assert_close(ours(q, k, v, bias, mask), wanted, rtol=1e-4, atol=1e-5)
    assert counts() == {"attention": 1}


def test_dropout_of_weights_keeps_its_probability():
    q, k = (heads(4, 2, 64, 8, grad=False) for _ in range(2))
    v = torch.ones(4, 2, 64, 8)
    called, y = graph_of(lambda q, k, v: written_out(q * 0, k, v, dropout=0.75), q, k, v)
    assert "attend_transposed" in called
    kept = (y * 64 / 4).round()  # of 64 equal weights a quarter stays, four times as large
    assert abs(float(kept.mean()) / 16 - 1) < 0.1


# ---- what is left alone -------------------------------------------------------------------------


def over_queries(q, k, v):
    return torch.matmul((q @ k.transpose(-2, -1)).softmax(-2), v)


def with_weights(q, k, v):
    weights = (q @ k.transpose(-2, -1)).softmax(-1)
    return torch.matmul(weights, v), weights


def capped_twice(q, k, v):
    scores = torch.tanh(torch.tanh(q @ k.transpose(-2, -1)))
    return torch.matmul(scores.softmax(-1), v)


def hidden_by_little(q, k, v):
    scores = (q @ k.transpose(-2, -1)).masked_fill(v.mean(-1).unsqueeze(-2) > 0, -4.0)
    return torch.matmul(scores.softmax(-1), v)


def scaled_by_query(q, k, v):
    scores = (q @ k.transpose(-2, -1)) * v.mean(-1).unsqueeze(-1)
    return torch.matmul(scores.softmax(-1), v)


def capped_behind_the_bias(q, k, v):
    scores = torch.tanh(q @ k.transpose(-2, -1) + v.mean(-1).unsqueeze(-2))
    return torch.matmul(scores.softmax(-1), v)


def written_where_others_read(q, k, v):
    mean = v.mean(-1).unsqueeze(-2).expand(2, 3, 9, 9).contiguous()
    mean += q @ k.transpose(-2, -1)
    return torch.matmul(mean.softmax(-1), v) + mean.mean()


def of_split_heads(q, k, v):
    scores = (q @ k.transpose(-2, -1)).view(2, 3, 3, 3, 9) + v.mean(-1).unsqueeze(1).unsqueeze(1)
    return torch.matmul(scores.view(2, 3, 9, 9).softmax(-1), v)


NEAR = (
    over_queries, with_weights, capped_twice, hidden_by_little, scaled_by_query,
    capped_behind_the_bias, written_where_others_read, of_split_heads,
)  # fmt: skip


@pytest.mark.parametrize("near", NEAR)
def test_what_is_nearly_attention_is_left(near):
    q, k, v = (heads(2, 3, 9, 16) for _ in range(3))
    ours = compiled(near)(q, k, v)
    torch.testing.assert_close(ours, near(q, k, v))
    assert counts() == {}


@pytest.mark.parametrize("power", [2, 4])
def test_what_is_nearly_a_norm_is_left(power):
    def norm(x, w):
        return w * (x * torch.rsqrt(x.pow(power).mean(-1, keepdim=True) + 1e-3))

    x, w = heads(5, 32), heads(32)
    torch.testing.assert_close(compiled(norm)(x, w), norm(x, w))
    assert counts() == ({"norm": 1} if power == 2 else {})
    if power == 4:
        assert "values" in tfk.graph_plans()[-1].refusals[0].reason


def test_memory_that_is_written_in_between_is_respected():
    def step(x, residual, w):
        total = x + residual
        residual.mul_(0.5)
        return F.rms_norm(total, (32,), w, 1e-5), residual * 1.0

    def made():
        torch.manual_seed(3)
        return torch.randn(5, 32), torch.randn(5, 32), torch.randn(32)

    torch.testing.assert_close(compiled(step)(*made()), step(*made()))
    assert "sum_norm" not in counts()


def test_another_autocast_inside_is_respected():
    def mlp(x, w, v):
        with torch.autocast("cpu", torch.bfloat16):
            return F.linear(F.gelu(F.linear(x, w)), v)

    x, w, v = heads(5, 32), heads(64, 32), heads(32, 64)
    torch.testing.assert_close(compiled(mlp)(x, w, v), mlp(x, w, v))
    assert counts() == {}


@pytest.mark.parametrize("pattern", sorted(NAMES))
def test_a_pattern_that_fails_leaves_the_graph(pattern, monkeypatch):
    kind = next(p for p in ALL if p.name == pattern)

    def candidates(place):
        place.node.graph.call_function(torch.neg, (place.node,))
        raise IndexError

    monkeypatch.setattr(kind, "candidates", candidates)
    x, w = heads(5, 32), heads(32)
    y = compiled(spelled_otherwise, patterns=[pattern])(x, w)
    torch.testing.assert_close(y, spelled_otherwise(x, w), rtol=1e-4, atol=1e-5)
    assert counts() == {}


def spelled_otherwise(x, w):
    """Arguments by name, of operations of every pattern. Scores are of order one: of large ones,
    softmax would tell two orders of a sum apart."""
    y = F.rms_norm(input=x, normalized_shape=(32,), weight=w, eps=1e-5)
    y = torch.add(y, F.dropout(input=x, p=0.0))
    square = torch.outer(w, w) / 32
    y = F.linear(input=F.gelu(input=F.linear(input=y, weight=square)), weight=w[None])
    weights = torch.softmax(input=y @ y.t(), dim=-1)
    y = torch.matmul(input=weights, other=torch.layer_norm(x, (32,), weight=w))
    return F.cross_entropy(input=y, target=torch.arange(5))


def test_arguments_by_name_are_understood_or_left():
    x, w = heads(5, 32), heads(32)
    y = compiled(spelled_otherwise)(x, w)
    torch.testing.assert_close(y, spelled_otherwise(x, w), rtol=1e-4, atol=1e-5)
    assert {"norm", "loss"} <= counts().keys()


# ---- situations ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_checkpointed_regions_are_rewritten_unless_they_drop(dropout):
    def block(x, w, gain):
        y = F.linear(F.gelu(F.linear(x, w)), w.t())
        return F.rms_norm(x + F.dropout(y, dropout), (32,), gain, 1e-5)

    def step(x, w, gain):
        return torch.utils.checkpoint.checkpoint(block, x, w, gain, use_reentrant=False).square()

    x, w, gain = heads(5, 32), heads(64, 32), heads(32)
    y = compiled(step, "aot_eager")(x, w, gain)
    found = torch.autograd.grad(y.sum(), (x, w, gain))
    assert counts() == {"mlp": 1, ("norm" if dropout else "sum_norm"): 1}
    if not dropout:
        wanted = torch.autograd.grad(step(x, w, gain).sum(), (x, w, gain))
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)


def test_one_graph_serves_many_sizes():
    def block(x, w, v, gain):
        y = x + F.linear(F.gelu(F.linear(x, w)), v)
        y = F.rms_norm(y, (32,), gain, 1e-5)
        return F.scaled_dot_product_attention(y[:, None], y[:, None], y[:, None], is_causal=True)

    w, v, gain = heads(64, 32), heads(32, 64), heads(32)
    ours = compiled(block, "aot_eager")
    for sizes in ((3, 7), (5, 11), (4, 16)):
        x = torch.randn(*sizes, 32)
        torch._dynamo.mark_dynamic(x, (0, 1))
        torch.testing.assert_close(ours(x, w, v, gain), block(x, w, v, gain), rtol=1e-4, atol=1e-4)
    assert len(tfk.graph_plans()) == 1
    assert {"attention", "mlp"} <= counts().keys()


def test_autocast_gives_the_dtypes_of_eager_code():
    def block(x, w, gain, labels):
        y = F.layer_norm(x + F.dropout(x, 0.0), (32,), gain)
        return F.cross_entropy(F.linear(y, w).float(), labels)

    x, w, gain, labels = heads(64, 32), heads(97, 32), heads(32), torch.randint(97, (64,))
    with torch.autocast("cpu", torch.bfloat16):
        wanted = block(x, w, gain, labels)
        loss = compiled(block)(x, w, gain, labels)
    assert loss.dtype is wanted.dtype
    torch.testing.assert_close(loss, wanted, rtol=2e-2, atol=1e-3)


def test_a_residual_behind_dropout_drops_with_its_probability():
    def block(x, residual, gain):
        total = residual + F.dropout(x, 0.25)
        return F.layer_norm(total, (64,), gain), total

    x, residual, gain = heads(64, 64), torch.zeros(64, 64), heads(64)
    called, (y, total) = graph_of(block, x, residual, gain)
    assert "bias_dropout_add_layer_norm" in called
    assert abs(float((total == 0).float().mean()) - 0.25) < 0.05
    torch.testing.assert_close(total[total != 0], (x / 0.75)[total != 0])
    torch.testing.assert_close(y, F.layer_norm(total, (64,), gain), rtol=1e-4, atol=1e-5)


def test_a_compiler_that_fails_with_ours_gets_the_stock_graph():
    def then(module, _inputs):
        if any(getattr(n.target, "__name__", "") == "rms_norm" for n in module.graph.nodes
               if "transformer_kernels" in getattr(n.target, "__module__", "")):  # fmt: skip
            raise NotImplementedError("no such function")
        return module.forward

    x, w = heads(5, 32), heads(32)
    with pytest.warns(RuntimeWarning, match="without our functions"):
        y = compiled(lambda x, w: F.rms_norm(x, (32,), w, 1e-5), then)(x, w)
    torch.testing.assert_close(y, F.rms_norm(x, (32,), w, 1e-5))


# ---- the backend itself -------------------------------------------------------------------------


def test_the_name_is_known():
    assert torch._dynamo.lookup_backend("transformer_kernels") is compile_graph
    pyproject = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    section = re.search(rf"entry-points\.{registry.GROUP}\]\n(.*)\n", pyproject)
    assert section is not None
    assert section[1] == f'{registry.NAME} = "{registry.VALUE}"'


def test_a_pattern_that_does_not_exist_is_refused():
    with pytest.raises(Exception, match="patterns has 'nrm', expected some of attention"):
        compiled(torch.sin, patterns=["nrm"])(torch.ones(3))


def test_every_pattern_is_decided_for_every_device():
    for table in DECISIONS.values():
        assert table.keys() == NAMES
        assert all(row.reason for row in table.values())


def test_what_the_table_declines_is_left_to_the_compiler():
    declined = next(n for n, row in DECISIONS["cpu"].items() if not row.training)
    assert declined in NAMES
    x, w = heads(5, 32), heads(32)
    compiled(lambda x, w: F.rms_norm(x, (32,), w, 1e-5), decide=True, patterns=["norm"])(x, w)
    plan = tfk.graph_plans()[-1]
    if DECISIONS["cpu"]["norm"].training:
        assert plan.sites
    else:
        assert [r.reason for r in plan.refusals] == [DECISIONS["cpu"]["norm"].reason]
