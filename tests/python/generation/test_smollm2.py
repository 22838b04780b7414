# SPDX-License-Identifier: MIT
"""SmolLM2-135M-Instruct from its GGUF file, beside llama.cpp on the same file."""

from __future__ import annotations

import math
import pydoc_data.topics
from typing import Any

import pytest
import torch

import transformer_kernels as tfk
from transformer_kernels.generation import chat
from transformer_kernels.generation.tokenizer import Tokenizer, tokenizer_of

try:
    FILE = chat.default_model()
except ValueError as error:
    pytest.skip(str(error), allow_module_level=True)

QUESTIONS = ("What is the capital of France?", "Write one sentence about the sea.")
WINDOW = 256


@pytest.fixture(scope="module")
def model() -> Any:
    return tfk.models.Llama.from_pretrained(FILE)


@pytest.fixture(scope="module")
def words() -> Tokenizer:
    return tokenizer_of(FILE)


@pytest.fixture(scope="module")
def llama() -> Any:
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama.cpp is the reference")
    return llama_cpp.Llama(str(FILE), n_ctx=512, logits_all=True, verbose=False, n_threads=2)


def text() -> str:
    return str(pydoc_data.topics.topics["class"])


def test_tokens_are_those_of_llama_cpp(words: Tokenizer, llama: Any) -> None:
    samples = [
        text()[:3000],
        "1234 don't  \n\n\t x=42; Größe 東京 🙂",
        "<|im_start|>user\nhi<|im_end|>",
    ]
    for sample in samples:
        expected = llama.tokenize(sample.encode(), add_bos=False, special=True)
        assert words.encode(sample) == expected


@torch.no_grad()
@pytest.mark.parametrize("question", QUESTIONS)
def test_greedy_text_is_that_of_llama_cpp(
    question: str, model: Any, words: Tokenizer, llama: Any
) -> None:
    """llama.cpp rounds activations to 8 bits, so a token may differ where two are nearly as
    likely: then the one that it chose is judged, and the texts are compared up to there."""
    asked = words.encode(words.render([{"role": "user", "content": question}]))
    found = tfk.generate(model, torch.tensor([asked]), 16, stop=words.stops)[
        0, len(asked) :
    ].tolist()
    expected = []
    for token in llama.generate(asked, temp=0.0, repeat_penalty=1.0):
        expected.append(token)
        if token in words.stops or len(expected) == len(found):
            break
    if found == expected:
        return
    place = next(i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b)
    shares = model(torch.tensor([asked + found[:place]]), logits_to_keep=1)[0, -1].softmax(-1)
    assert float(shares[expected[place]]) > 0.8 * float(shares[found[place]])


@torch.no_grad()
def test_perplexity_is_that_of_llama_cpp(model: Any, words: Tokenizer, llama: Any) -> None:
    tokens = words.encode(text())[: WINDOW + 1]
    targets = torch.tensor(tokens[1:])
    ours = torch.nn.functional.cross_entropy(model(torch.tensor([tokens[:-1]]))[0], targets)
    llama.reset()
    llama.eval(tokens[:-1])
    logits = torch.from_numpy(llama.scores[:WINDOW].copy())
    theirs = torch.nn.functional.cross_entropy(logits, targets)
    assert math.exp(float(ours - theirs)) < 1.005  # llama.cpp rounds activations, and is worse
    assert math.exp(float(theirs - ours)) < 1.03


def test_chat_answers(capsys: pytest.CaptureFixture) -> None:
    from transformer_kernels import cli

    status = cli.main(["chat", "--prompt", QUESTIONS[0], "--device", "cpu", "--max-tokens", "12"])
    assert status == 0
    assert "Paris" in capsys.readouterr().out
