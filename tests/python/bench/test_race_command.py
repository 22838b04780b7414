# SPDX-License-Identifier: MIT
"""transformer-kernels race: training steps of Hugging Face models, stock, compiled and fused."""

from __future__ import annotations

import functools

import pytest
import torch

import transformer_kernels as tfk
from transformer_kernels.bench import families
from transformer_kernels.cli import main
from transformer_kernels.measure import schema

pytest.importorskip("transformers")

SHORT = ("--device", "cpu", "--layers", "1", "--batch", "2", "--seq-len", "16", "--rounds", "1")


@pytest.mark.parametrize(
    ("name", "more", "models"),
    [
        ("bert", (), ["stock", "fused"]),
        ("qwen3", ("--graphs",), ["stock", "fused", "fused, graphs"]),
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


@pytest.mark.parametrize("name", families.FAMILIES)
def test_models_start_from_the_same_weights(name, monkeypatch):
    # Without timing all sites are put in, and the models differ in dropout's masks alone.
    monkeypatch.setattr(families, "fuse", functools.partial(tfk.fuse, measure=False))
    size = families.Size(1, 32, 2, 48, 64, 2, 16, key_heads=1)
    task = families.task(families.FAMILIES[name], size, ["stock", "fused"], torch.device("cpu"),
                         {"skip_logits": False})  # fmt: skip
    stock, fused = task.models.values()
    assert tfk.fuse(fused).sites
    torch.testing.assert_close(fused.state_dict(), stock.state_dict(), rtol=0, atol=0)
    losses = [task.loss_of(model.eval(), task.batch) for model in (stock, fused)]
    torch.testing.assert_close(losses[1], losses[0])


def test_an_unknown_provider_is_named(capsys):
    assert main(["race", "gpt2", *SHORT, "--providers", "stock,liger"]) == 2
    words = "--providers is 'liger', expected one of stock, compiled, rewritten, fused"
    assert words in capsys.readouterr().err
