# SPDX-License-Identifier: MIT
"""fuse, unfuse and plan: what they return, what they leave alone, and what they refuse."""

from __future__ import annotations

import copy
import json
import pickle

import pytest
import torch
from torch import nn

import transformer_kernels as tfk
from transformer_kernels.fuse import cost, table
from transformer_kernels.fuse import plan as plan_function
from transformer_kernels.fuse.inputs import given
from transformer_kernels.fuse.plan import put_in
from transformer_kernels.fuse.prove import agree, proven
from transformer_kernels.fuse.site import Site, Times
from transformer_kernels.testing.transformer import MLP, EagerRMSNorm, Transformer

WIDTH = 32


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Transformer(WIDTH)


@pytest.fixture
def args():
    return (torch.randn(2, 40, WIDTH),)


def test_a_fused_model_keeps_what_others_refer_to(model, args):
    names, parameters = list(model.state_dict()), list(model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    plan = tfk.fuse(model, args, measure=False)
    assert list(model.state_dict()) == names
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert type(model.norm).__name__ == "LayerNorm"
    assert isinstance(model.norm, nn.LayerNorm)
    before = parameters[0].detach().clone()
    model(*args).cumsum(-1).sum().backward()  # a plain sum of a norm is constant
    optimizer.step()
    assert not torch.equal(parameters[0], before)
    assert tfk.fuse(model, args) is plan
    assert tfk.plan(model, args) is plan


def test_times_hold_for_one_build_of_the_library(monkeypatch):
    here = table.Table(torch.device("cpu"))
    here.keep("a site", {"us": 1.0})
    here.write()
    assert table.Table(torch.device("cpu")).get("a site") == {"us": 1.0}
    monkeypatch.setattr(table, "library_build", lambda: "no kernels")
    assert table.Table(torch.device("cpu")).get("a site") is None


def test_a_plan_alone_leaves_the_model(model, args):
    classes = [type(m) for m in model.modules()]
    state = {path: dict(m.__dict__) for path, m in model.named_modules()}
    plan = tfk.plan(model, args, measure=False)
    assert plan.counts()["norm"] == 5
    assert [type(m) for m in model.modules()] == classes
    assert {path: dict(m.__dict__) for path, m in model.named_modules()} == state
    assert plan_function is tfk.plan


def test_nothing_stays_of_fusing_that_fails(model, args, monkeypatch):
    classes = [type(m) for m in model.modules()]
    plan = tfk.plan(model, args, measure=False)
    bad = Site("norm", "bad", nn.Identity(), mixin=int)
    with pytest.raises(TypeError):
        put_in([*plan.sites, bad])
    assert [type(m) for m in model.modules()] == classes
    assert not any(name.startswith("_tfk_") for m in model.modules() for name in m.__dict__)


def test_an_encoder_layer_that_reads_weights_past_its_modules():
    """PyTorch's layer does so in evaluation, unless a module's class differs; ours asks it not to
    while it records and verifies."""

    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    layer = nn.TransformerEncoderLayer(WIDTH, 2, 64, dropout=0.0, batch_first=True)
    layer.linear1.__class__ = Doubled
    x = torch.randn(2, 8, WIDTH)
    stock = layer(x)
    assert tfk.fuse(layer, (x,), measure=False).sites
    torch.testing.assert_close(layer(x), stock)
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_model_that_raises_is_left_as_it_was(model):
    with pytest.raises(RuntimeError):
        tfk.fuse(model, (torch.randn(2, 40, WIDTH + 1),), measure=False)
    assert type(model.norm) is nn.LayerNorm
    assert not model.norm._forward_hooks


def test_copies_and_pickles_are_fused_and_can_be_unfused(model, args):
    want = model(*args)
    tfk.fuse(model, args, measure=False)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert tfk.plan(other).counts() == tfk.plan(model).counts()
        torch.testing.assert_close(other(*args), want, rtol=2e-4, atol=2e-4)
        tfk.unfuse(other)
        assert torch.equal(other(*args), want)
        assert type(other.norm) is nn.LayerNorm
    assert type(model.norm) is not nn.LayerNorm


def test_unfuse_refuses_what_was_put_on_since(model, args):
    tfk.fuse(model, args, measure=False)
    kind = type(model.norm)
    model.norm.__class__ = type("Wrapped", (kind,), {})
    with pytest.raises(ValueError, match="unfuse: norm is Wrapped"):
        tfk.unfuse(model)
    assert type(model.blocks[0].norm2) is kind  # nothing was taken out
    model.norm.__class__ = kind
    tfk.unfuse(model)
    assert type(model.norm) is nn.LayerNorm


def test_a_part_of_a_fused_model_is_not_fused_again(model, args):
    tfk.fuse(model, args, measure=False)
    with pytest.raises(ValueError, match="fuse: model has fused modules"):
        tfk.fuse(model.blocks[0], args)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda _: tfk.fuse(3), TypeError, "fuse: model is int, expected an nn.Module"),
        (lambda m: tfk.fuse(m, 3), TypeError, "fuse: inputs is int, expected a dict"),
        (lambda m: tfk.fuse(m), ValueError, "fuse: inputs is None, expected the arguments"),
        (lambda m: tfk.fuse(m, patterns=["x"]), ValueError, "fuse: patterns has 'x', expected"),
        (
            lambda m: tfk.fuse(torch.compile(m, backend="eager")), TypeError,
            "fuse: model is OptimizedModule",
        ),
    ],
)  # fmt: skip
def test_bad_arguments(model, call, error, message):
    with pytest.raises(error, match=message):
        call(model)


def test_patterns_may_be_chosen(model, args):
    fuser = tfk.OperatorFuser(patterns=["norm", "sum_norm"], measure=False)
    assert fuser.plan(model, args).counts() == {"norm": 5, "sum_norm": 4}


def test_the_plan_is_a_table_and_json(model, args):
    model.blocks[0].mlp.act.register_forward_hook(lambda *_: None)
    plan = tfk.plan(model, args, measure=False)
    text = str(plan)
    assert text == repr(plan)
    assert "FUSED: Transformer" in text
    assert "add_layer_norm" in text
    assert "not fused: mlp at blocks.0.mlp: act has a hook" in text
    data = json.loads(plan.to_json())
    assert data["model"] == "Transformer"
    assert {site["pattern"] for site in data["sites"]} == set(plan.counts())
    norm = next(site for site in data["sites"] if site["path"] == "blocks.0.norm1")
    assert norm["kernel"] == "functional.rms_norm"
    assert norm["launches"] == [6, 1]  # pow, mean, add, rsqrt and two products
    rows, size = 2 * 40, 4
    assert norm["bytes"][1] == (2 * rows * WIDTH + WIDTH) * size
    assert data["refusals"][0]["path"] == "blocks.0.mlp"


# ---- inputs -------------------------------------------------------------------------------------


def test_given_inputs_are_cut_to_a_few_rows():
    ids = torch.zeros(8, 100, dtype=torch.long)
    made = given(nn.Identity(), {"input_ids": ids, "mask": ids, "flag": True})
    assert made.kwargs["input_ids"].shape == (2, 37)
    assert made.kwargs["input_ids"].is_contiguous()
    assert made.kwargs["flag"] is True
    assert made.factor == 800 // 74
    image = given(nn.Identity(), torch.zeros(8, 3, 16, 16))
    assert image.args[0].shape == (2, 3, 16, 16)
    different = given(nn.Identity(), (torch.zeros(8, 3), torch.zeros(3, 3)))
    assert [tuple(x.shape) for x in different.args] == [(8, 3), (3, 3)]
    named = given(nn.Identity(), (torch.return_types.max((torch.zeros(8, 3), torch.zeros(8))),))
    assert [tuple(x.shape) for x in named.args[0]] == [(2, 3), (2,)]
    assert named.args[0].values.shape == (2, 3)


def test_inputs_of_pytorchs_transformers_are_made_up():
    layer = nn.TransformerDecoderLayer(WIDTH, 4, 64, batch_first=True)
    plan = tfk.plan(layer, measure=False)
    assert "made up: tgt (2, 37, 32), memory (2, 37, 32)" in plan.inputs
    assert plan.counts()["attention"] == 2


# ---- proofs -------------------------------------------------------------------------------------


def test_agreement_is_of_shape_dtype_and_numbers():
    x = torch.randn(100)
    assert agree({"a": [x]}, {"a": [x * (1 + 1e-6)]})
    assert not agree(x * (1 + 1e-3), x)
    assert not agree(x.double(), x)
    assert not agree(x[None], x)
    assert not agree(torch.full((2,), torch.nan), torch.ones(2))
    assert not agree((x,), (x, x))


def test_a_proof_draws_parameters_and_leaves_the_module(model):
    from transformer_kernels.fuse.patterns.norm import Form, Norm

    norm = EagerRMSNorm(WIDTH)  # its weights of one would hide what is done to them
    state = dict(norm.__dict__)
    for zero_centered in (False, True):
        form = Form("rms", "weight", None, "eps", zero_centered)
        found = proven(norm, Norm, {"_tfk_norm": form}, WIDTH, torch.float32)
        assert found is not zero_centered
    wrong = Form("rms", "weight", None, 1e-5, False)  # epsilon is 1e-6
    assert not proven(norm, Norm, {"_tfk_norm": wrong}, WIDTH, torch.float32)
    assert dict(norm.__dict__) == state
    assert torch.equal(norm.weight, torch.ones(WIDTH))


def test_modules_of_one_class_that_differ_are_proven_one_by_one():
    model = nn.Sequential(EagerRMSNorm(WIDTH), EagerRMSNorm(WIDTH, eps=0.5), EagerRMSNorm(WIDTH))
    model[2].offset = 0.25  # no norm of ours scales by that
    plan = tfk.plan(model, (torch.randn(2, 40, WIDTH),), measure=False)
    assert [site.path for site in plan.sites] == ["0", "1"]
    assert [refusal.path for refusal in plan.refusals] == ["2"]


# ---- times --------------------------------------------------------------------------------------


def _timed(training, inference):
    """Stands in for measured times."""
    times = iter((Times(*training), Times(*inference)))
    return lambda *_: next(times, Times(10.0, 5.0))


@pytest.mark.parametrize(
    ("training", "inference", "opens"),
    [((10, 5), (10, 5), (True, True)), ((10, 12), (10, 5), (False, True)),
     ((10, 9.9), (10, 5), (False, True)), ((10, 12), (10, 12), None)],
)  # fmt: skip
def test_a_site_runs_where_it_pays(monkeypatch, training, inference, opens):
    monkeypatch.setattr(cost, "_timed", _timed(training, inference))
    norm = nn.LayerNorm(WIDTH)
    plan = tfk.plan(norm, (torch.randn(2, 40, WIDTH),))
    if opens is None:
        assert not plan.sites
        assert "PyTorch's 10 and 10" in plan.refusals[0].reason
    else:
        (site,) = plan.sites
        assert (site.gate.training, site.gate.inference) == opens
        assert site.training == Times(*training)


def test_times_last_from_one_plan_to_the_next(monkeypatch):
    model, args = nn.Sequential(nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)), (torch.ones(2, 40, 32),)
    calls = []

    def timed(*_):
        calls.append(1)
        return Times(10.0, 5.0)

    monkeypatch.setattr(cost, "_timed", timed)
    first = tfk.plan(model, args)
    count = len(calls)
    assert count == 3  # both passes, the forward pass, and the one of one row
    assert tfk.plan(model, args).to_json() == first.to_json()
    assert len(calls) == count
    file = cost.Table(torch.device("cpu"))._path
    file.write_text("{")  # a broken file counts as none
    tfk.plan(model, args)
    assert len(calls) == 2 * count


def test_real_times_are_measured():
    plan = tfk.plan(MLP(WIDTH), (torch.randn(2, 40, WIDTH),))
    times = [s.training for s in plan.sites] or [r.reason for r in plan.refusals]
    assert times[0] is not None
