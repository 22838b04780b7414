# SPDX-License-Identifier: MIT
"""LossHead against the functions that TRL's trainers call, and in models and trainers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from transformer_kernels.fuse.derive import is_derived
from transformer_kernels.integrations.loss_head import LossHead, add_loss_head

from .conftest import VOCABULARY, tiny

# As the models' weights, so that no seed finds two tokens that are equally likely.
TOKENS = torch.randint(3, VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(5))
LABELS = TOKENS.masked_fill(torch.arange(9) < 3, -100)


def scores_of(logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    log_p = logits.log_softmax(-1)
    counted = tokens != -100
    found = log_p.gather(-1, tokens.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    entropy = -(log_p.exp() * log_p).sum(-1)
    return found * counted, entropy * counted, (logits.argmax(-1) == tokens) * counted


@pytest.mark.parametrize("softcap", [0.0, 2.0])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("plain", [True, False], ids=["linear", "with a hook"])
def test_scores_and_gradients(plain: bool, temperature: float, softcap: float) -> None:
    layer = nn.Linear(16, VOCABULARY).double()
    hidden = torch.randn(2, 9, 16, dtype=torch.float64, requires_grad=True)
    if not plain:
        layer.register_forward_hook(lambda *_: None)
    head = LossHead(layer, temperature=temperature, softcap=softcap)
    found = head(hidden, LABELS, return_entropy=True, return_accuracy=True)
    logits = layer(hidden)
    logits = softcap * (logits / softcap).tanh() if softcap else logits
    expected = scores_of(logits / temperature, LABELS)
    leaves = [hidden, *layer.parameters()]
    gradients = []
    for log_probs, entropy, accuracy in (found, expected):
        assert not accuracy.requires_grad
        gradients.append(torch.autograd.grad((log_probs + 0.3 * entropy).sum(), leaves))
    for a, b in zip((*found, *gradients[0]), (*expected, *gradients[1]), strict=True):
        torch.testing.assert_close(a.double(), b.double())


def test_bad_temperatures() -> None:
    with pytest.raises(ValueError, match="LossHead: temperature is 0, expected a number above 0"):
        LossHead(nn.Linear(2, 2), temperature=0.0)


def test_functions_of_trl() -> None:
    utils = pytest.importorskip("trl.trainer.utils")
    layer, hidden = nn.Linear(16, VOCABULARY), torch.randn(2, 9, 16)
    found = LossHead(layer, temperature=0.7)(hidden, TOKENS, return_entropy=True)
    expected = utils.selective_log_softmax_and_entropy(layer(hidden), TOKENS, temperature=0.7)
    torch.testing.assert_close(found[:2], expected, rtol=1e-5, atol=1e-5)


# ---- in a model ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2"])
def test_models(name: str) -> None:
    changes = {"final_logit_softcapping": 1.5} if name == "gemma2" else {}
    model = tiny(name, **changes).eval()
    logits = model(TOKENS).logits
    add_loss_head(model, outputs=("log_probs", "entropy", "is_top1"))
    assert torch.equal(model(TOKENS).logits, logits)
    out = model(TOKENS, labels=LABELS, fused_lm_head=True)
    expected = scores_of(logits[:, :-1], LABELS[:, 1:])
    for a, b in zip((out.log_probs, out.entropy, out.is_top1), expected, strict=True):
        torch.testing.assert_close(a, b.float(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(out.loss, model(TOKENS, labels=LABELS).loss)
    found = torch.autograd.grad(out.loss, list(model.parameters()), allow_unused=True)
    loss = model(TOKENS, labels=LABELS).loss
    for a, b in zip(found, torch.autograd.grad(loss, list(model.parameters())), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def test_shifted_labels_counts_and_copies() -> None:
    model = tiny("llama").eval()
    add_loss_head(model)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        copied.lm_head.weight.mul_(2)
    plain, other = (m(TOKENS, labels=LABELS, fused_lm_head=True) for m in (model, copied))
    assert not torch.allclose(plain.loss, other.loss)
    shifted = torch.cat((LABELS[:, 1:], torch.full((2, 1), -100)), 1)
    out = model(TOKENS, shift_labels=shifted, fused_lm_head=True, num_items_in_batch=5)
    torch.testing.assert_close(out.log_probs[:, :-1], plain.log_probs)
    torch.testing.assert_close(out.loss, -plain.log_probs.sum() / 5)
    assert torch.equal(out.label_mask, shifted != -100)
    assert out.entropy is None
    assert out.is_top1 is None
    assert model.generate(TOKENS, max_new_tokens=2, do_sample=False).shape == (2, 11)


def test_refusals() -> None:
    with pytest.raises(ValueError, match="add_loss_head: outputs has 'mean_logits', expected"):
        add_loss_head(tiny("llama"), outputs=("mean_logits",))
    with pytest.raises(TypeError, match="add_loss_head: model is Linear, expected a causal"):
        add_loss_head(nn.Linear(2, 2))
    model = tiny("llama")
    model.lm_head.register_forward_hook(lambda _module, _inputs, logits: 3 * logits)
    add_loss_head(model)  # the hook is the head's
    model = tiny("llama")
    model.register_forward_hook(lambda _module, _inputs, out: setattr(out, "logits", -out.logits))
    with pytest.raises(ValueError, match="whose logits are not those of its output embeddings"):
        add_loss_head(model)
    assert "forward" not in vars(model)


# ---- in trainers --------------------------------------------------------------------------------


def rows() -> list[dict[str, Any]]:
    return [{"input_ids": row.tolist(), "labels": row.tolist()} for row in TOKENS.repeat(4, 1)]


def trained(folder: Any, callbacks: list[Any]) -> tuple[Any, list[float]]:
    """A model after a few steps from the same weights, and the losses."""
    pytest.importorskip("accelerate")
    model = tiny("llama").float()
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=2, max_steps=3, logging_steps=1,
        report_to=[], save_strategy="no", use_cpu=True, learning_rate=1e-3, seed=3,
        disable_tqdm=True,
    )  # fmt: skip
    trainer = transformers.Trainer(
        model, arguments, train_dataset=rows(), callbacks=callbacks,
        data_collator=transformers.default_data_collator,
    )  # fmt: skip
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return model, losses


def test_a_trainer_trains_as_without_kernels(tmp_path: Any) -> None:
    from transformer_kernels.integrations.trainer import use_transformer_kernels

    stock, expected = trained(tmp_path, [])
    for options in ({}, {"undo": True}):
        kernels = use_transformer_kernels(measure=False, **options)
        model, losses = trained(tmp_path, [kernels])
        assert len(losses) == 3
        assert losses == pytest.approx(expected, rel=1e-3)
        is_fused = any(is_derived(type(module)) for module in model.modules())
        assert is_fused == (kernels.plan is not None) == (not options)
        pairs = zip(model.parameters(), stock.parameters(), strict=True)
        assert all(torch.allclose(a, b, rtol=1e-2, atol=1e-3) for a, b in pairs)


def test_sft_of_trl(tmp_path: Any) -> None:
    trl = pytest.importorskip("trl")
    datasets, tokenizers = pytest.importorskip("datasets"), pytest.importorskip("tokenizers")
    words = tokenizers.models.WordLevel({str(i): i for i in range(VOCABULARY)}, unk_token="0")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(words), eos_token="2", pad_token="0"
    )
    table = datasets.table.InMemoryTable.from_pylist(rows())
    logs = []
    for ours in (False, True):
        trainer = trl.SFTTrainer(
            tiny("llama").float(),
            args=trl.SFTConfig(
                output_dir=str(tmp_path), per_device_train_batch_size=2, max_steps=2,
                logging_steps=1, report_to=[], save_strategy="no", use_cpu=True, bf16=False,
                learning_rate=1e-3, seed=3, disable_tqdm=True, gradient_checkpointing=False,
                dataset_kwargs={"skip_prepare_dataset": True},
            ),
            train_dataset=datasets.Dataset(table, fingerprint="rows"),  # some versions find none
            processing_class=tokenizer,
        )  # fmt: skip
        if ours:
            add_loss_head(trainer.model, outputs=("log_probs", "entropy", "is_top1"))
        trainer.train()
        logs.append([entry for entry in trainer.state.log_history if "entropy" in entry])
    assert len(logs[0]) == len(logs[1]) == 2
    for stock, found in zip(*logs, strict=True):
        for name in ("loss", "entropy", "mean_token_accuracy"):
            assert found[name] == pytest.approx(stock[name], rel=1e-3), name
