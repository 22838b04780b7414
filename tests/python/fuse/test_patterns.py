# SPDX-License-Identifier: MIT
"""Each pattern on a small module of PyTorch: found by what it does, right, and asked again."""

from __future__ import annotations

import copy
import warnings
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import transformer_kernels as tfk
from transformer_kernels.fuse import cast, mixin
from transformer_kernels.fuse import fuser as fuser_module
from transformer_kernels.fuse.hand import Given, misses
from transformer_kernels.testing import transformer as toys

WIDTH = 32


def inputs(*shape):
    return (torch.randn(*(shape or (2, 40, WIDTH))),)


def randomised(model):
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def results(model, args):
    """The result and all gradients, of a loss that weighs each number otherwise."""
    args = [x.clone().requires_grad_(x.is_floating_point()) for x in args]
    y = model(*args)
    y = y[0] if isinstance(y, tuple) else y
    (y * torch.linspace(0.5, 1.5, y.numel()).view(y.shape)).sum().backward()
    found = [y.detach(), *(x.grad for x in args), *(p.grad for p in model.parameters())]
    model.zero_grad()
    return found


def same(ours, stock, factor=1.0):
    """Whether both are right for the same: float32's errors of some thousand terms."""
    for a, b in zip(ours, stock, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=2e-4, atol=factor * 2e-4 * float(b.abs().max()))
    return True


def fused(model, args, **options):
    ours = copy.deepcopy(model)
    return ours, tfk.fuse(ours, args, measure=False, **options)


class Ends(nn.Module):
    """A branch that ends in a module, a residual sum and a norm behind it."""

    def __init__(self):
        super().__init__()
        self.branch, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x):
        total = x + self.branch(x)
        return self.norm(total) + total


class Timm(nn.Module):
    """An MLP whose activation is a function, with a dropout between its layers."""

    def __init__(self, p=0.0):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)
        self.drop = nn.Dropout(p)

    def forward(self, x):
        return self.fc2(self.drop(F.gelu(self.fc1(x), approximate="tanh")))


class DenseAct(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense, self.act = nn.Linear(WIDTH, 48), nn.ReLU()

    def forward(self, x):
        return self.act(self.dense(x))


CASES = {
    "layer_norm": (lambda: nn.LayerNorm(WIDTH), {"norm": 1}),
    "layer_norm without parameters": (
        lambda: nn.LayerNorm(WIDTH, elementwise_affine=False), {"norm": 1},
    ),
    "rms_norm": (lambda: nn.RMSNorm(WIDTH, eps=1e-3), {"norm": 1}),
    "eager rms_norm": (lambda: toys.EagerRMSNorm(WIDTH), {"norm": 1}),
    "zero-centred rms_norm": (lambda: toys.EagerRMSNorm(WIDTH, offset=1.0), {"norm": 1}),
    "eager gelu": (toys.EagerGELU, {"activation": 1}),
    "silu": (nn.SiLU, {"activation": 1}),
    "linear and relu": (DenseAct, {"linear_act": 1}),
    "mlp": (lambda: toys.MLP(WIDTH), {"mlp": 1}),
    "mlp of a function": (Timm, {"mlp": 1}),
    "gated mlp": (lambda: toys.GatedMLP(WIDTH), {"gated_mlp": 1}),
    "packed gated mlp": (lambda: toys.GatedMLP(WIDTH, packed=True), {"gated_mlp": 1}),
    "attention": (
        lambda: toys.SelfAttention(WIDTH, 4),
        {"attention": 1, "linear": 1, "rope": 1, "siblings": 1},
    ),
    "sum and norm": (Ends, {"linear": 1, "norm": 1, "sum_norm": 1}),
    "transformer": (
        toys.Transformer,
        {"mlp": 1, "norm": 5, "gated_mlp": 1, "attention": 2, "rope": 2, "siblings": 2,
         "linear": 2, "sum_norm": 4},
    ),
    "encoder": (
        lambda: nn.TransformerEncoderLayer(WIDTH, 4, 64, 0.0, batch_first=True),
        {"attention": 1, "linear": 1, "linear_then_act": 1, "norm": 2, "sum_norm": 2},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_pattern_is_found_right_and_taken_out(case):
    torch.manual_seed(0)
    make, wanted = CASES[case]
    model, args = randomised(make()), inputs()
    ours, plan = fused(model, args)
    assert plan.counts() == wanted
    assert not plan.refusals
    assert same(results(ours, args), results(model, args))
    tfk.unfuse(ours)
    assert torch.equal(ours(*args), model(*args))
    assert [type(m) for m in ours.modules()] == [type(m) for m in model.modules()]


def test_dropout_drops_as_often_and_repeats():
    model = nn.Sequential(nn.Dropout(0.25))
    x = torch.ones(64, 256)
    plan = tfk.fuse(model, (x,), measure=False)
    assert plan.counts() == {"dropout": 1}
    torch.manual_seed(1)
    y = model(x)
    torch.manual_seed(1)
    assert torch.equal(model(x), y)
    assert abs(float((y == 0).float().mean()) - 0.25) < 0.02
    assert model.eval()(x) is x


def test_a_dropout_behind_an_mlp_is_part_of_it_and_one_between_is_not():
    args = inputs(2, 40, WIDTH)
    for model, drops in ((toys.MLP(WIDTH, p=1.0), 1.0), (Timm(p=1.0), 0.0)):
        ours, plan = fused(model, args)
        assert plan.counts() == {"mlp": 1}
        ours.train()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that PyTorch's own code runs
            y = ours(*args)
        assert float((y == 0).float().mean()) == drops  # of Timm's, the last bias is left


# ---- what is refused ----------------------------------------------------------------------------


class OddNorm(toys.EagerRMSNorm):
    def forward(self, x):
        return super().forward(x) * 1.01


class OddAct(nn.Module):
    def forward(self, x):
        return torch.tanh(x) * x


@pytest.mark.parametrize(("make", "pattern"), [(lambda: OddNorm(WIDTH), "norm"),
                                               (OddAct, "activation")])  # fmt: skip
def test_what_only_looks_like_a_pattern_is_refused(make, pattern):
    _, plan = fused(make(), inputs())
    assert not plan.sites
    assert [r.pattern for r in plan.refusals] == [pattern]


def test_an_mlp_that_does_more_is_left():
    class Odd(toys.MLP):
        def forward(self, x):
            return super().forward(x) * 2

    _, plan = fused(Odd(WIDTH), inputs())
    assert plan.counts() == {"activation": 1, "linear": 1, "linear_then_act": 1}


def test_a_hook_inside_an_mlp_refuses_it():
    model = toys.MLP(WIDTH)
    model.up.register_forward_hook(lambda *_: None)
    _, plan = fused(model, inputs())
    assert plan.counts() == {"activation": 1, "linear": 2}
    assert [r.pattern for r in plan.refusals] == ["mlp", "linear_then_act"]


# ---- what is asked again at each call -----------------------------------------------------------


class Adapter(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base, self.weight, self.bias = base, base.weight, base.bias

    def forward(self, x):
        return self.base(x) + x.sum(-1, keepdim=True)


@pytest.mark.parametrize("name", ["up", "down"])
def test_an_adapter_put_there_later_runs_and_it_is_said(name):
    model, args = randomised(toys.MLP(WIDTH)), inputs()
    ours, _ = fused(model, args)
    for m in (model, ours):
        setattr(m, name, Adapter(getattr(m, name)))
    mixin._said.clear()
    with pytest.warns(RuntimeWarning, match="PyTorch's own code runs"):
        assert same(results(ours, args), results(model, args))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours(*args)  # once is enough


def test_a_module_that_does_nothing_is_asked_too():
    class WithPlaceForNorm(toys.MLP):  # as timm's MLPs have
        def __init__(self, width):
            super().__init__(width)
            self.norm = nn.Identity()

        def forward(self, x):
            return self.down(self.norm(self.act(self.up(x))))

    model, args = randomised(WithPlaceForNorm(WIDTH)), inputs()
    ours, plan = fused(model, args)
    assert plan.counts() == {"mlp": 1}
    for m in (model, ours):
        m.norm.register_forward_hook(lambda _module, _args, y: y * 1.5)
    with pytest.warns(RuntimeWarning, match="norm is no longer as it was"):
        assert same(results(ours, args), results(model, args))


def test_a_module_that_is_idle_in_evaluation_acts_in_training():
    class Half(nn.Module):
        def forward(self, x):
            return x * 0.5 if self.training else x

    class WithHalf(toys.MLP):
        def __init__(self, width):
            super().__init__(width)
            self.scaled = Half()

        def forward(self, x):
            return self.down(self.scaled(self.act(self.up(x))))

    model, args = randomised(WithHalf(WIDTH)), inputs()
    ours, plan = fused(model, args)
    assert plan.counts() == {"mlp": 1}
    for m in (model, ours):
        m.train()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert same(results(ours, args), results(model, args))


def test_a_hook_put_there_later_is_called_and_sees_true_values():
    model, args = randomised(toys.Transformer(WIDTH)), inputs()
    ours, _ = fused(model, args)
    seen = []
    for m in (model, ours):
        values = {}
        seen.append(values)
        for path, module in m.named_modules():
            module.register_forward_hook(
                lambda _, args, y, path=path, values=values: values.update({path: (args, y)})
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            m(*args)
    stock, fused_values = seen
    assert stock.keys() == fused_values.keys()
    for path, (given, y) in stock.items():
        ours_given, ours_y = fused_values[path]
        torch.testing.assert_close(ours_y, y, rtol=2e-4, atol=2e-4)
        torch.testing.assert_close(ours_given, given, rtol=2e-4, atol=2e-4)


def test_a_norm_by_keyword_or_beside_another_dtype_runs_stock_code():
    class ByName(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(WIDTH)

        def forward(self, x):
            return self.norm(x)

    model, (x,) = ByName(), inputs()
    ours, plan = fused(model, (x,))
    assert plan.counts() == {"norm": 1}
    assert torch.equal(ours.norm(input=x), model.norm(input=x))
    eager = toys.EagerRMSNorm(WIDTH)
    ours, _ = fused(eager, (x,))
    half = x.bfloat16()
    assert ours(half).dtype is eager(half).dtype is torch.float32


def test_few_rows_run_stock_code(monkeypatch):
    model, args = randomised(toys.MLP(WIDTH)), inputs()
    ours, _ = fused(model, args)
    monkeypatch.setattr(tfk.functional, "linear_act", None)
    few = torch.randn(1, 3, WIDTH)
    assert torch.equal(ours(few), model(few))
    with pytest.raises(TypeError):
        ours(*args)


def test_a_sum_hands_the_norms_result_over():
    model, args = randomised(Ends()), inputs()
    ours, _ = fused(model, args)
    want = model(*args)
    stock = nn.LayerNorm.forward
    nn.LayerNorm.forward = None  # the norm's own code is not asked
    try:
        torch.testing.assert_close(ours(*args), want, rtol=2e-4, atol=2e-4)
    except TypeError:
        pytest.fail("the norm computed its result again")
    finally:
        nn.LayerNorm.forward = stock
    total = args[0] + ours.branch(args[0])
    assert type(total) is torch.Tensor


class _OneDropout(nn.Module):
    """Both branches end with the same dropout, which does not know which norm comes next."""

    def __init__(self, p):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm, self.last = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.drop = nn.Dropout(p)

    def forward(self, x):
        x = x + self.drop(self.first(x))
        return self.last(x + self.drop(self.second(self.norm(x))))


@pytest.mark.parametrize("p", [0.0, 0.5])
@pytest.mark.parametrize("patterns", [("norm", "sum_norm"), ("norm", "dropout", "sum_norm")])
def test_a_dropout_that_ends_two_branches_keeps_their_norms_apart(p, patterns, monkeypatch):
    model, args = randomised(_OneDropout(p)).train(), inputs()
    ours, plan = fused(model, args, patterns=patterns)
    paths = {site.path for site in plan.sites if site.pattern == "sum_norm"}
    assert paths == {"first", "second"}
    calls, ours = [], ours.train()
    one = tfk.functional.add_layer_norm

    def counted(*args, **kwargs):
        calls.append(1)
        return one(*args, **kwargs)

    monkeypatch.setattr(tfk.functional, "add_layer_norm", counted)
    result = ours(*args)
    assert len(calls) == 2
    if p == 0:
        torch.testing.assert_close(result, model(*args), rtol=2e-4, atol=2e-4)
    assert not any("_tfk_given" in vars(m) or misses(m) for m in ours.modules())


def test_a_layer_that_is_called_again_and_again_keeps_its_sum():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)

        def forward(self, x):
            for _ in range(3):
                x = self.norm(x + self.layer(x))
            return x

    model, args = randomised(Shared()), inputs()
    ours, plan = fused(model, args, patterns=["norm", "sum_norm"])
    assert plan.counts() == {"norm": 1, "sum_norm": 1}
    assert same(results(ours, args), results(model, args))


def test_what_was_left_is_freed_with_what_it_was_left_for():
    x, y = torch.ones(2), torch.ones(3)
    given, gone = Given(x, y), weakref.ref(y)
    assert given.of(x) is y
    assert given.pair() == (x, y)
    del y
    assert gone() is not None
    del x
    assert gone() is None
    assert given.pair() is None


def test_a_norm_that_is_never_asked_for_ends_the_handing_over():
    class Twice(Ends):
        asks = True

        def forward(self, x):
            total = x + self.branch(x)
            return self.norm(total if self.asks else total.clone())

    model, args = randomised(Twice()), inputs()
    ours, plan = fused(model, args)
    assert "sum_norm" in plan.counts()
    ours.asks = model.asks = False
    for _ in range(5):
        torch.testing.assert_close(ours(*args), model(*args), rtol=2e-4, atol=2e-4)
    assert type(ours.branch(*args)) is torch.Tensor


def test_sites_with_which_the_model_is_another_are_refused(monkeypatch):
    model, args = randomised(toys.Transformer(WIDTH)), inputs()
    differs = fuser_module._differs

    def judged(model, inputs, trace, sites):
        is_odd = any(site.path == "blocks.0.mlp" and site.pattern == "mlp" for site in sites)
        return "is odd" if is_odd else differs(model, inputs, trace, sites)

    monkeypatch.setattr(fuser_module, "_differs", judged)
    ours, plan = fused(model, args)
    assert [(r.path, r.pattern) for r in plan.refusals] == [("blocks.0.mlp", "mlp")]
    assert plan.refusals[0].reason == "with it the model as a whole is odd"
    assert "mlp" not in plan.counts()
    assert same(results(ours, args), results(model, args))


# ---- autocast -----------------------------------------------------------------------------------


class PreNorm(nn.Module):
    """A branch of 16 bits under autocast, added to a float32 residual; a product reads the norm."""

    def __init__(self):
        super().__init__()
        self.branch, self.norm, self.reader = (
            nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        )  # fmt: skip

    def forward(self, x):
        total = x + self.branch(x)
        return self.reader(self.norm(total)) + total


@pytest.fixture
def lowered():
    """A fused model beside stock's under autocast, and the dtypes that its norm gave."""
    model, args = randomised(PreNorm()), inputs()
    with torch.autocast("cpu", torch.bfloat16):
        ours, plan = fused(model, args)
        assert plan.counts() == {"linear": 2, "norm": 1, "sum_norm": 1}
    assert "bfloat16" in plan.inputs
    return ours, model, args


def under_autocast(model, args):
    with torch.autocast("cpu", torch.bfloat16):
        y = model(*args)
    (y * torch.linspace(0.5, 1.5, y.numel()).view(y.shape)).sum().backward()
    return y.detach(), *(p.grad for p in model.parameters())


def assert_as_exact(ours, stock, args):
    """Results and gradients under autocast have stock's dtypes, and at most twice its errors."""
    exact = copy.deepcopy(stock).double()
    y = exact(*[x.double() for x in args])
    (y * torch.linspace(0.5, 1.5, y.numel()).view(y.shape)).sum().backward()
    wanted = [y.detach(), *(p.grad for p in exact.parameters())]
    found, beside = under_autocast(ours, args), under_autocast(stock, args)
    for mine, other, want in zip(found, beside, wanted, strict=True):
        assert mine.dtype is other.dtype
        assert (mine.double() - want).norm() <= 2 * (other.double() - want).norm() + 1e-6


def test_a_sum_of_two_dtypes_is_as_exact_as_stock(lowered):
    assert_as_exact(*lowered)


def test_a_norm_that_products_alone_read_is_narrow(lowered, monkeypatch):
    ours, _, args = lowered
    made, narrow = [], tfk.functional.bias_dropout_add_layer_norm
    monkeypatch.setattr(
        tfk.functional, "bias_dropout_add_layer_norm",
        lambda *rest, **more: made.append(y := narrow(*rest, **more)) or y,
    )  # fmt: skip
    seen = []
    with torch.autocast("cpu", torch.bfloat16):
        ours(*args)
        ours.reader.register_forward_pre_hook(lambda _, given: seen.append(given[0].dtype))
        ours(*args)
    assert [y.dtype for y, _ in made] == [torch.bfloat16]
    assert seen == [torch.float32]


class TwoReaders(nn.Module):
    """Two products of one float32 value, behind which something else reads it too."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 48)

    def forward(self, x):
        y = x.tanh()
        return torch.cat((self.one(y), self.two(y), y), -1)


def test_an_operand_is_cast_once():
    model, args = randomised(TwoReaders()), inputs()
    ours, plan = fused(model, args, patterns=["linear"])
    assert plan.counts() == {"linear": 2}
    assert_as_exact(ours, model, args)


def test_a_cast_operand_stays_with_its_tensor():
    x = torch.randn(3, 8)
    assert cast.cast_once(x) is x
    with torch.autocast("cpu", torch.bfloat16):
        once = cast.cast_once(x)
        assert once.dtype is torch.bfloat16
        assert cast.cast_once(x) is once
        with torch.no_grad():
            assert cast.cast_once(x) is not once
        x.add_(1)
        torch.testing.assert_close(cast.cast_once(x), x.bfloat16(), rtol=0, atol=0)
        leaf = torch.randn(3, 8, requires_grad=True)
        assert cast.cast_once(leaf) is leaf


class HeadNorm(nn.Module):
    """A norm of a product, which autocast makes a float32 result of 16-bit rows."""

    def __init__(self):
        super().__init__()
        self.project, self.norm = nn.Linear(WIDTH, WIDTH), toys.EagerRMSNorm(WIDTH)

    def forward(self, x):
        return self.norm(self.project(x)).sin()


def test_a_norm_of_16_bits_is_lifted_as_stocks():
    model, args = randomised(HeadNorm()), inputs()
    with torch.autocast("cpu", torch.bfloat16):
        ours, plan = fused(model, args, patterns=["norm"])
    assert plan.counts() == {"norm": 1}
    assert_as_exact(ours, model, args)


class PostNorm(nn.Module):
    """Two layers that normalise their sums, as BERT's do."""

    def __init__(self):
        super().__init__()
        self.first, self.branches, self.norms = (
            nn.LayerNorm(WIDTH),
            nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2)),
            nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2)),
        )

    def forward(self, x):
        x = self.first(x)
        for branch, norm in zip(self.branches, self.norms, strict=True):
            x = norm(branch(x) + x)
        return x


def test_residuals_in_the_dtype_of_autocast():
    model, args = randomised(PostNorm()), inputs()
    with torch.autocast("cpu", torch.bfloat16):
        wide, plan = fused(model, args)
        narrow, other = fused(model, args, residual_in_fp32=False)
        assert plan.counts() == other.counts() == {"linear": 2, "norm": 3, "sum_norm": 2}
        assert (wide(*args).dtype, narrow(*args).dtype) == (torch.float32, torch.bfloat16)
    assert narrow(*args).dtype is torch.float32
    exact = results(copy.deepcopy(model).double(), [x.double() for x in args])
    wanted = [exact[0], *exact[2:]]  # without the gradient of the input
    found, beside = (
        [(a.double() - b).norm() / b.norm() for a, b in zip(ys, wanted, strict=True)]
        for ys in (under_autocast(narrow, args), under_autocast(model, args))
    )
    assert max(found) <= 2 * max(beside)
