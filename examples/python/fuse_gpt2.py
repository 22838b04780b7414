# SPDX-License-Identifier: MIT
"""Puts the kernels into Hugging Face's GPT-2 step by step: what each step changes, and its speed.

Read `transformer_kernels/demo/gpt2.py` first, which has the steps. Here each step is compared with
the stock model (logits and gradients, without dropout), and then all models train in turn, with
dropout.
"""

import argparse
import copy
from typing import Any

from torch import Tensor

from transformer_kernels._extras import named
from transformer_kernels.bench import training
from transformer_kernels.bench.options import pick_device
from transformer_kernels.measure.statistics import quantile
from transformer_kernels.measure.table import box

with named("fuse_gpt2"):  # transformers
    from transformer_kernels.demo.gpt2 import STEPS
    from transformer_kernels.demo.model import stock_model

BATCH, TOKENS = 8, 128


def models() -> dict[str, Any]:
    """The stock model, and a model for each step, which has the earlier steps too."""
    found = {"stock": stock_model(layers=2, width=192, heads=4, block=TOKENS, seed=0, dropout=0.1)}
    model = found["stock"]
    for name, put_in in STEPS.items():
        model = copy.deepcopy(model)
        put_in(model)
        found[name] = model
    return found


def loss_of(model: Any, tokens: Tensor) -> Tensor:
    return model(tokens, labels=tokens, use_cache=False).loss


def results(model: Any, tokens: Tensor) -> dict[str, Tensor]:
    """Logits, and the gradients of all parameters."""
    model.eval().zero_grad()
    loss_of(model, tokens).backward()
    gradients = {name: x.grad.clone() for name, x in model.named_parameters()}
    return {"logits": model(tokens).logits.detach(), **gradients}


def largest_error(got: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """The largest error, relative to the largest number of its tensor."""
    return max(
        float((got[name] - expected[name]).abs().max() / expected[name].abs().max())
        for name in expected
    )


def check(found: dict[str, Any], tokens: Tensor) -> dict[str, float]:
    """The errors of each step; parameters must have stock's names and shapes."""
    stock = found["stock"]
    shapes = {name: x.shape for name, x in stock.state_dict().items()}
    expected, errors = results(stock, tokens), {}
    for name, model in found.items():
        assert {key: x.shape for key, x in model.state_dict().items()} == shapes
        errors[name] = largest_error(results(model, tokens), expected)
        assert errors[name] < 1e-4, f"{name}: {errors[name]}"
    return errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument(
        "--steps",
        type=int,
        default=training.LEAST_STEPS,
        help="of training, by each model; fewer than %(default)s show no speed-up",
    )
    options = parser.parse_args()
    device = pick_device(options.device)

    found = {name: model.to(device) for name, model in models().items()}
    windows = training.windows(training.documentation(), TOKENS, BATCH)
    batches = (batch.to(device) for batch in windows)
    errors = check(found, next(batches))
    recipe = training.Recipe(options.steps, learning_rate=1e-3)
    runs = training.train(found, batches, loss_of, recipe, device)

    times = {name: quantile(sorted(run.seconds), 0.5) for name, run in runs.items()}
    body = [
        [name, f"{errors[name]:.1e}", f"{1e3 * times[name]:.1f}",
         training.speed_up(times["stock"], times[name], options.steps), f"{run.losses[-1]:.3f}"]
        for name, run in runs.items()
    ]  # fmt: skip
    headings = [("Put in", 12), ("error", 7), ("ms a step", 9), ("speed-up", 8), ("loss", 6)]
    subtitle = (
        "error: largest of logits and gradients, without dropout; loss: after training, with it"
    )
    print(box("GPT-2, STEP BY STEP", subtitle, headings, body))


if __name__ == "__main__":
    main()
