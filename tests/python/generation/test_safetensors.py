# SPDX-License-Identifier: MIT
"""Llama from Hugging Face's folders: logits beside transformers', and folders that lack parts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from transformer_kernels.models import Llama, LlamaConfig
from transformer_kernels.testing.tolerance import assert_close_to_reference

from .conftest import KINDS, SIZES, hugging_face, prompt, saved


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_logits_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    stock = hugging_face(kind)
    folder = saved(stock, tmp_path)
    ours = Llama.from_pretrained(folder)
    exact = Llama.from_pretrained(folder, dtype=torch.float64)
    tokens = prompt(length=23)
    expected, reference = stock(tokens).logits, exact(tokens)
    # transformers rotates in float32 in any model, so its float64 shows mistakes, and no rounding.
    wide = stock.double()(tokens).logits
    torch.testing.assert_close(reference, wide, atol=1e-4 * wide.abs().max(), rtol=0)
    scale = float(reference.abs().max())
    assert_close_to_reference(ours(tokens), expected, reference, kind, magnitude=32 * scale)


@torch.no_grad()
def test_a_cache_gives_what_the_whole_sequence_gives(tmp_path: Path) -> None:
    model = Llama.from_pretrained(saved(hugging_face("mistral"), tmp_path), dtype=torch.float64)
    tokens = prompt(length=17)
    cache = model.new_cache(batch=2, capacity=20)
    parts = [model(part, cache=cache) for part in tokens.split([9, 1, 7], 1)]
    assert cache.length == 17
    torch.testing.assert_close(torch.cat(parts, 1), model(tokens))
    torch.testing.assert_close(model(tokens, logits_to_keep=2), model(tokens)[:, -2:])


def test_shards_are_found_by_their_index(tmp_path: Path) -> None:
    stock = hugging_face("qwen2")
    whole = Llama.from_pretrained(saved(stock, tmp_path / "whole"))
    shards = Llama.from_pretrained(saved(stock, tmp_path / "shards", max_shard_size="60KB"))
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    for (name, one), other in zip(
        whole.state_dict().items(), shards.state_dict().values(), strict=True
    ):
        assert torch.equal(one, other), name


def test_the_state_dict_is_that_of_transformers(tmp_path: Path) -> None:
    stock = hugging_face("llama3")
    ours = Llama.from_pretrained(saved(stock, tmp_path))
    assert ours.state_dict().keys() == stock.state_dict().keys()
    assert ours.lm_head.weight is ours.model.embed_tokens.weight


def test_it_learns(tmp_path: Path) -> None:
    model = Llama.from_pretrained(saved(hugging_face("qwen3"), tmp_path))
    model(prompt()).logsumexp(-1).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_file_that_ends_early_is_named(tmp_path: Path) -> None:
    folder = saved(hugging_face("llama2"), tmp_path)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        Llama.from_pretrained(folder)
    file.unlink()
    with pytest.raises(ValueError, match=r"model\.safetensors: does not exist"):
        Llama.from_pretrained(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "model_type is 'gpt2'"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"hidden_size": None}, "no hidden_size"),
        ({"intermediate_size": 95}, "has shape"),
        ({"num_hidden_layers": 3}, r"have no model\.layers\.2"),
        ({"dtype": "sharp"}, "dtype is 'sharp'"),
        ({"rope_parameters": {"rope_type": "odd"}}, "rope_type"),
    ],
)
def test_a_configuration_that_does_not_fit_is_named(
    changes: dict, message: str, tmp_path: Path
) -> None:
    folder = saved(hugging_face("llama2"), tmp_path)
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    with pytest.raises(ValueError, match=message) as caught:
        Llama.from_pretrained(folder)
    assert str(tmp_path) in str(caught.value)


def test_an_index_names_files_beside_it_only(tmp_path: Path) -> None:
    folder = saved(hugging_face("llama2"), tmp_path)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"lm_head.weight": "../other.safetensors"}}))
    with pytest.raises(ValueError, match=r"names \.\./other\.safetensors"):
        Llama.from_pretrained(folder)
    index.write_text("{")
    with pytest.raises(ValueError, match=r"index\.json: is no JSON"):
        Llama.from_pretrained(folder)


def test_arguments_are_checked(tmp_path: Path) -> None:
    fields = {**SIZES, "model_type": "llama", "max_position_embeddings": 8}
    model = Llama(LlamaConfig.from_hugging_face(fields))
    with pytest.raises(ValueError, match="tokens has 9 tokens, expected at most 8"):
        model(prompt(length=9))
    with pytest.raises(IndexError, match="tokens has the index 101"):
        model(torch.tensor([[101]]))
    with pytest.raises(ValueError, match=r"torch\.no_grad"):
        model(prompt(length=2), cache=model.new_cache(batch=2))
    with pytest.raises(ValueError, match="does not exist"):
        Llama.from_pretrained(tmp_path / "none.gguf")
    with pytest.raises(ValueError, match="num_kv_heads is 3"):
        LlamaConfig.from_hugging_face({**fields, "num_key_value_heads": 3})
