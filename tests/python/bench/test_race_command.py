# SPDX-License-Identifier: MIT
"""transformer-kernels race: training steps and forward passes of Hugging Face models, stock,
compiled, fused and with Liger's kernels."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
import types

import pytest
import torch

import transformer_kernels as tfk
from transformer_kernels.bench import families, race, training
from transformer_kernels.bench.rivals import liger_models
from transformer_kernels.cli import main
from transformer_kernels.measure import schema

pytest.importorskip("transformers")

CPU = torch.device("cpu")
SHORT = ("--device", "cpu", "--layers", "1", "--batch", "2", "--rounds", "1")
LENGTH = ("--seq-len", "16")
TINY = families.Size(1, 32, 2, 48, 64, 2, 16, key_heads=1)
IMAGES = dataclasses.replace(TINY, tokens=5, image=32)


@pytest.fixture
def untimed(monkeypatch):
    """Puts in all sites without timing them, and the models differ in dropout's masks alone."""
    monkeypatch.setattr(families, "fuse", functools.partial(tfk.fuse, measure=False))


def made(name, providers, **options):
    family = families.FAMILIES[name]
    size = IMAGES if family.full.image else TINY
    return families.task(family, size, providers, CPU, {"skip_logits": False}, **options)


@pytest.mark.parametrize(
    ("name", "more", "models"),
    [
        ("bert", LENGTH, ["stock", "fused"]),
        ("qwen3", (*LENGTH, "--graphs"), ["stock", "fused", "fused, graphs"]),
    ],
)
def test_models_are_raced(name, more, models, tmp_path, capsys):
    figures = tmp_path / "race.json"
    options = ("--providers", "stock,fused", "--json", str(figures), "--quiet", *more)
    assert main(["race", name, *SHORT, *options]) == 0
    said = capsys.readouterr()
    assert "STEPS OF TRAINING IN TURN" in said.out
    assert "racing" not in said.out + said.err
    result = schema.load(figures)
    assert [row.model for row in result.step_times] == models
    assert all(row.samples == 1 and row.median_us > 0 for row in result.step_times)
    assert result.settings["model"].startswith(families.FAMILIES[name].title)
    assert result.settings["batch"] == "batch 2x16"


@pytest.mark.usefixtures("untimed")
@pytest.mark.parametrize("name", families.FAMILIES)
def test_models_start_from_the_same_weights(name):
    task = made(name, ["stock", "fused"])
    stock, fused = task.models.values()
    assert tfk.fuse(fused).sites
    torch.testing.assert_close(fused.state_dict(), stock.state_dict(), rtol=0, atol=0)
    losses = [task.loss_of(model.eval(), task.batch) for model in (stock, fused)]
    torch.testing.assert_close(losses[1], losses[0])


@pytest.mark.usefixtures("untimed")
@pytest.mark.parametrize("name", families.FAMILIES)
def test_a_forward_pass_is_asked_for_what_is_served(name):
    task = made(name, ["stock", "fused"], trains=False)
    family = families.FAMILIES[name]
    assert "labels" not in task.batch
    for model in task.models.values():
        assert not model.training
        assert model.config.model_type == family.kind
        logits = model(**task.batch).logits
        shape = (2, 1, TINY.vocabulary) if family.causal else logits.shape
        assert logits.shape == shape
        assert task.loss_of(model, task.batch) == logits.flatten()[0]
    result = race.measure(task, CPU, rounds=2, quiet=True)
    assert [row.samples for row in result.step_times] == [2, 2]
    assert all(p.grad is None for model in task.models.values() for p in model.parameters())


@pytest.mark.parametrize("name", ["llama", "vit"])
def test_parameters_and_pixels_have_the_dtype(name):
    task = made(name, ["stock"], dtype=torch.bfloat16)
    (model,) = task.models.values()
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert not task.recipe.autocast
    run = training.Run.begin(model, task.recipe, CPU)
    run.step(task.loss_of, task.batch, CPU)
    assert {p.grad.dtype for p in model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize(("autocast", "entered"), [(True, 1), (False, 0)])
def test_autocast_is_left_out_of_pure_bfloat16(autocast, entered, monkeypatch):
    seen = []

    def precision(device):
        seen.append(device)
        return contextlib.nullcontext()

    monkeypatch.setattr(training, "_precision", precision)
    recipe = training.Recipe(1, 1.0, autocast=autocast)
    run = training.Run.begin(torch.nn.Linear(2, 2), recipe, CPU)
    run.step(lambda model, batch: model(batch).sum(), torch.ones(2), CPU)
    assert len(seen) == entered


def test_a_recipe_that_does_not_train_leaves_the_model_as_it_is():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.5))
    before = [p.clone() for p in model.parameters()]
    run = training.Run.begin(model, training.Recipe(1, 1.0, trains=False), CPU)
    inferred = []

    def number(model, batch):
        inferred.append(torch.is_inference_mode_enabled())
        return model(batch).sum()

    for _ in range(2):
        run.step(number, torch.ones(3, 2), CPU)
    assert inferred == [True, True]
    assert run.losses[0] == run.losses[1]  # without dropout
    assert len(run.seconds) == 2
    torch.testing.assert_close(list(model.parameters()), before, rtol=0, atol=0)


def test_images_have_as_many_tokens_as_is_said():
    vit = families.FAMILIES["vit"]
    for size in (vit.small, vit.full):
        assert size.tokens == (size.image // families.PATCH) ** 2 + 1
    assert vit.full.batch_text == "batch 64x224x224 pixels"
    assert str(vit.full) == "24 layers, width 1024, 16 heads, 1000 labels"


@pytest.mark.usefixtures("untimed")
def test_forward_passes_are_raced(tmp_path, capsys):
    figures = tmp_path / "race.json"
    options = ("--inference", "--providers", "stock,fused", "--json", str(figures))
    assert main(["race", "gpt2-medium", *SHORT, *LENGTH, *options]) == 0
    said = capsys.readouterr().out
    assert "FORWARD PASSES IN TURN" in said
    assert "ms a pass" in said
    assert "preparing" in said
    settings = schema.load(figures).settings
    assert settings["pass"] == "forward pass"
    assert settings["logits"] == "logits of the last token"
    assert "dropout" not in settings


@pytest.mark.usefixtures("untimed")
def test_bfloat16_parameters_are_said(tmp_path):
    figures = tmp_path / "race.json"
    options = ("--pure-bf16", "--providers", "stock,fused", "--json", str(figures), "--quiet")
    assert main(["race", "vit", *SHORT, *options]) == 0
    settings = schema.load(figures).settings
    assert settings["dtype"] == "bfloat16 parameters"
    assert settings["batch"] == "batch 2x224x224 pixels"


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("gpt2", ("--providers", "stock,flash"),
         "--providers is 'flash', expected one of stock, compiled, rewritten, fused, liger"),
        ("llama", ("--providers", "liger"), "--providers has 'liger', but: runs on a GPU only"),
        ("vit", LENGTH, "--seq-len is for text, but vit is given images"),
        ("gpt2", ("--inference", "--skip-logits"), "--skip-logits is for training"),
        ("gpt2", ("--pure-bf16", "--residual-in-16-bits"),
         "--residual-in-16-bits is for training under autocast"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(name, options, words, capsys):
    assert main(["race", name, *SHORT, *options]) == 2
    assert words in capsys.readouterr().err


# ---- Liger --------------------------------------------------------------------------------------


def test_ligers_absence_is_said(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("transformer_kernels.bench.commands.race.PROVIDERS", ("stock", "liger"))
    figures = tmp_path / "race.json"
    assert main(["race", "llama", *SHORT, *LENGTH, "--quiet", "--json", str(figures)]) == 0
    assert "not measured: liger on Llama: runs on a GPU only" in capsys.readouterr().out
    result = schema.load(figures)
    assert [row.model for row in result.step_times] == ["stock"]
    assert result.skipped == [schema.Skip("Llama", "liger", "runs on a GPU only")]


@pytest.fixture
def liger(monkeypatch):
    """A stand-in for Liger, which replaces a function and a class for all models of the family, and
    the forward of the instance that it is given."""
    from transformers.models.llama import modeling_llama

    calls = []
    rotate = modeling_llama.apply_rotary_pos_emb

    def rotated(*args, **kwargs):
        calls.append("rope")
        return rotate(*args, **kwargs)

    def apply(model, **kwargs):
        modeling_llama.apply_rotary_pos_emb = rotated
        modeling_llama.LlamaMLP = torch.nn.Identity
        stock = model.forward

        def forward(self, *args, **kwargs):
            calls.append("forward")
            return stock(*args, **kwargs)

        model.forward = types.MethodType(forward, model)

    package = types.ModuleType("liger_kernel")
    package.transformers = types.ModuleType("liger_kernel.transformers")
    package.transformers._apply_liger_kernel_to_instance = apply
    package.transformers.monkey_patch = types.SimpleNamespace(
        MODEL_TYPE_TO_APPLY_LIGER_FN={"llama": apply}
    )
    monkeypatch.setitem(sys.modules, "liger_kernel", package)
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers", package.transformers)
    return calls


def test_ligers_kernels_run_in_its_own_model_alone(liger):
    from transformers.models.llama import modeling_llama

    before = dict(vars(modeling_llama))
    task = made("llama", ["stock", "liger"])
    assert dict(vars(modeling_llama)) == before
    losses = {}
    for name in ("stock", "liger", "stock"):
        liger.clear()
        losses[name] = task.loss_of(task.models[name], task.batch)
        assert liger == (["forward", "rope"] if name == "liger" else [])
        assert dict(vars(modeling_llama)) == before
    torch.testing.assert_close(losses["liger"], losses["stock"])


@pytest.mark.usefixtures("liger")
def test_liger_is_left_out_of_models_that_it_does_not_know():
    gpu = torch.device("cuda")
    assert liger_models.why_absent("llama", gpu) is None
    assert liger_models.why_absent("gpt2", gpu) == "Liger has no kernels for models of type gpt2"
    assert liger_models.why_absent("llama", CPU) == "runs on a GPU only"
