# SPDX-License-Identifier: MIT
"""Put the kernels into Hugging Face's GPT-2: its LayerNorms, weights kept."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import transformer_kernels as tfk


def fuse_norms(model: torch.nn.Module) -> int:
    """Replace every torch LayerNorm inside `model`; returns how many."""
    found = [
        (parent, name, norm)
        for parent in model.modules()
        for name, norm in parent.named_children()
        if type(norm) is torch.nn.LayerNorm
    ]
    for parent, name, norm in found:
        ours = tfk.nn.LayerNorm(norm.normalized_shape, eps=norm.eps, device="meta")
        ours.load_state_dict(norm.state_dict(), assign=True)
        setattr(parent, name, ours)
    return len(found)


def main() -> None:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=128, n_head=4, vocab_size=256)).eval()
    tokens = torch.randint(256, (2, 64))
    before = model(tokens).logits
    count = fuse_norms(model)
    after = model(tokens).logits
    print(f"{count} norms replaced; logits differ by at most {(after - before).abs().max():.1e}")
    torch.testing.assert_close(after, before)


if __name__ == "__main__":
    main()
