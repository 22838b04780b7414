# SPDX-License-Identifier: MIT
"""Files that examples/cpp/gpt2 reads: those of other programs, and those that are damaged or made
to do harm, which it refuses."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import GPT2LMHeadModel

from .conftest import BATCH, LENGTH, VOCABULARY, Program, small_model, write_tokens

PROMPT = "GPT"
NEW_TOKENS = 20
# Names of llm.c's parameters that are in its checkpoints layer by layer, in their order.
LAYER = (
    "ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight",
    "attn.c_proj.bias", "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias",
    "mlp.c_proj.weight", "mlp.c_proj.bias",
)  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> GPT2LMHeadModel:
    model = small_model()
    model.save_pretrained(tmp_path / "model")
    return model


def write_llmc(path: Path, model: GPT2LMHeadModel, version: int) -> None:
    weights = {k.removeprefix("transformer."): v for k, v in model.state_dict().items()}
    config = model.config
    padded = VOCABULARY + 25
    header = [
        20240326, version, config.n_positions, VOCABULARY, config.n_layer, config.n_head,
        config.n_embd, padded,
    ]  # fmt: skip
    rows = torch.zeros(padded - VOCABULARY, config.n_embd)
    tensors = [weights["wte.weight"], rows, weights["wpe.weight"]]
    for name in LAYER:
        for i in range(config.n_layer):
            tensor = weights[f"h.{i}.{name}"]
            tensors.append(tensor.T.contiguous() if tensor.dim() == 2 else tensor)
    tensors += [weights["ln_f.weight"], weights["ln_f.bias"]]
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    numbers = flat.numpy().tobytes() if version == 3 else flat.bfloat16().view(torch.int16).numpy()
    path.write_bytes(struct.pack("<256i", *header, *[0] * 248) + bytes(numbers))


def gradients(gpt2: Program, folder: Path, model: Path) -> dict[str, Tensor]:
    write_tokens(folder / "tokens.bin", [i * 37 % VOCABULARY for i in range(200)])
    gpt2(
        "train", "--model", model, "--data", folder / "tokens.bin", "--batch", BATCH,
        "--length", LENGTH, "--gradients", folder / "gradients.safetensors",
    )  # fmt: skip
    return load_file(folder / "gradients.safetensors")


@pytest.mark.parametrize("version", [3, 5])
def test_a_checkpoint_of_llmc_holds_the_same_model(
    gpt2: Program, tmp_path: Path, model: GPT2LMHeadModel, version: int
) -> None:
    if version == 5:
        model.bfloat16().float().save_pretrained(tmp_path / "model")
    write_llmc(tmp_path / "model.bin", model, version)
    wanted = gradients(gpt2, tmp_path, tmp_path / "model")
    for name, tensor in gradients(gpt2, tmp_path, tmp_path / "model.bin").items():
        assert torch.equal(tensor, wanted[name]), name


def test_a_file_without_the_language_model_and_of_16_bits_is_read(
    gpt2: Program, tmp_path: Path, model: GPT2LMHeadModel
) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        half = model.to(dtype)
        (tmp_path / "half").mkdir(exist_ok=True)
        (tmp_path / "half" / "config.json").write_text(
            (tmp_path / "model" / "config.json").read_text()
        )
        save_file(dict(half.transformer.state_dict()), tmp_path / "half" / "model.safetensors")
        half.float().save_pretrained(tmp_path / "model")
        wanted = gradients(gpt2, tmp_path, tmp_path / "model")
        for name, tensor in gradients(gpt2, tmp_path, tmp_path / "half").items():
            assert torch.equal(tensor, wanted[name]), name


@pytest.mark.parametrize("flags", [(), ("--bfloat16",)], ids=str)
def test_the_likeliest_tokens_are_those_of_transformers(
    gpt2: Program, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    model = small_model(vocabulary=128)  # ASCII: each token is printed as itself
    model.save_pretrained(tmp_path / "model")
    result = gpt2(
        "generate", "--model", tmp_path / "model", "--prompt", PROMPT, "--tokens", NEW_TOKENS,
        "--temperature", 0, *flags,
    )  # fmt: skip
    tokens = torch.tensor(list(result.stdout[:-1]))
    assert bytes(tokens[: len(PROMPT)].tolist()).decode() == PROMPT
    assert len(tokens) == len(PROMPT) + NEW_TOKENS
    logits = model.double()(tokens[None, :-1]).logits[0, len(PROMPT) - 1 :]
    chosen = logits.gather(1, tokens[len(PROMPT) :, None])[:, 0]
    largest = logits.max(1).values
    # Two tokens may be as likely as each other, up to rounding.
    assert (largest - chosen).max() < (0.5 if flags else 1e-3) * logits.std()


def test_texts_at_once_are_those_of_their_seeds(
    gpt2: Program, tmp_path: Path, model: GPT2LMHeadModel
) -> None:
    arguments = (
        "generate", "--model", tmp_path / "model", "--prompt", PROMPT, "--tokens", 12,
        "--temperature", 1.0, "--top-k", 20, "--top-p", 0.9,
    )  # fmt: skip
    several = gpt2(*arguments, "--count", 3, "--seed", 7).stdout
    assert gpt2(*arguments, "--count", 3, "--seed", 7).stdout == several
    assert several.count(PROMPT.encode()) >= 3
    several.decode()  # broken characters are replaced


def write_vocabulary(folder: Path) -> None:
    """A token for each byte, and one for the end of a text."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 256 + 68)]
    words = [*map(chr, visible), "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")


def test_a_text_ends_where_the_model_ends_it(gpt2: Program, tmp_path: Path) -> None:
    model = small_model(vocabulary=257)
    with torch.no_grad():  # about every other token ends a text
        direction = model.transformer.ln_f.bias.fill_(3)  # longer than what is added to it
        model.transformer.wte.weight[256] = direction * 5.5 / direction.square().sum()
    model.save_pretrained(tmp_path / "model")
    arguments = ("generate", "--model", tmp_path / "model", "--tokens", 28, "--prompt", PROMPT)
    gpt2(*arguments, fails=True)  # the bytes alone are too few tokens
    write_vocabulary(tmp_path / "model")
    text = gpt2(*arguments, "--count", 6).stdout.decode()
    assert text.count(PROMPT) >= 6
    assert "endoftext" not in text
    with torch.no_grad():
        model.transformer.wte.weight[256] = direction * 1000
    model.save_pretrained(tmp_path / "model")
    assert gpt2(*arguments).stdout.decode() == PROMPT + "\n"


def test_files_of_a_tokenizer_that_nobody_names_are_not_read(gpt2: Program, tmp_path: Path) -> None:
    write_vocabulary(tmp_path)
    (tmp_path / "text.txt").write_text(PROMPT)
    files = ("--data", "text.txt", "--out", "tokens.bin")
    for flags, first in (((), ord("G")), (("--tokenizer", "."), ord("G") - 33)):
        gpt2("tokenize", *files, *flags, cwd=tmp_path)
        assert struct.unpack("<3H", (tmp_path / "tokens.bin").read_bytes()[1024:])[0] == first
    small_model(vocabulary=257).save_pretrained(tmp_path)
    gpt2("generate", "--model", "model.safetensors", "--tokens", 1, cwd=tmp_path)  # beside it


def test_words_are_those_of_the_tokenizer_of_transformers(gpt2: Program, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    reference = tokenizers.ByteLevelBPETokenizer()
    corpus = Path(__file__).parents[4] / "README.md"
    reference.train([str(corpus)], vocab_size=700, special_tokens=["<|endoftext|>"])
    reference.save_model(str(tmp_path))
    alphabet = "abcdefghij   \n\t'12.,:!-_äöß日本語ЖДд٣½Ⅷ́🙂\xa0\u2003\u200d" + "'s't're've'm'll'd"
    text = "".join(random.choice(alphabet) for _ in range(3000)) + corpus.read_text()[:3000]
    (tmp_path / "text.txt").write_text(text, newline="")
    gpt2("tokenize", "--data", tmp_path / "text.txt", "--tokenizer", tmp_path, "--out",
         tmp_path / "tokens.bin")  # fmt: skip
    stored = (tmp_path / "tokens.bin").read_bytes()[1024:]
    assert list(struct.unpack(f"<{len(stored) // 2}H", stored)) == reference.encode(text).ids


def header_with(change: Callable[[dict[str, Any]], None]) -> Callable[[bytes], bytes]:
    """Changes the header of a safetensors file, and nothing else."""

    def changed(stored: bytes) -> bytes:
        length = int.from_bytes(stored[:8], "little")
        header = json.loads(stored[8 : 8 + length])
        change(header)
        text = json.dumps(header).encode()
        return len(text).to_bytes(8, "little") + text + stored[8 + length :]

    return changed


def entry(**changes: Any) -> Callable[[bytes], bytes]:
    return header_with(lambda header: header["transformer.ln_f.bias"].update(changes))


HOSTILE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "too short for a length": lambda _: b"\x01\x00\x00",
    "a header longer than the file": lambda stored: b"\xff" * 8 + stored[8:],
    "a header of 2^63 bytes": lambda stored: (1 << 63).to_bytes(8, "little") + stored[8:],
    "a header that is no JSON": lambda stored: stored[:8] + b"x" + stored[9:],
    "a header that is no object": lambda _: (2).to_bytes(8, "little") + b"[]",
    "deep JSON": lambda _: (200_000).to_bytes(8, "little") + b"[" * 200_000,
    "no UTF-8": lambda _: (4).to_bytes(8, "little") + b'{"\xff"',
    "truncated": lambda stored: stored[:-1],
    "bytes behind the tensors": lambda stored: stored + b"\x00",
    "another dtype": entry(dtype="F64"),
    "an unknown dtype": entry(dtype="F33"),
    "a dtype that is a number": entry(dtype=32),
    "integers": entry(dtype="I32"),
    "another shape": entry(shape=[47]),
    "a shape of the same size": entry(shape=[2, 24]),
    "a shape that overflows": entry(shape=[1 << 32, 1 << 32, 12]),
    "a negative size": entry(shape=[-48]),
    "a size that is text": entry(shape=["48"]),
    "a fraction": entry(shape=[48.0]),
    "a thousand dimensions": entry(shape=[48] + [1] * 1000),
    "offsets that end before they begin": entry(data_offsets=[192, 0]),
    "offsets beyond the file": entry(data_offsets=[1 << 62, (1 << 62) + 192]),
    "offsets that overlap": entry(data_offsets=[0, 192]),
    "three offsets": entry(data_offsets=[0, 192, 192]),
    "no offsets": header_with(lambda header: header["transformer.ln_f.bias"].pop("data_offsets")),
    "a tensor less": header_with(lambda header: header.pop("transformer.ln_f.bias")),
    "metadata that is a number": header_with(lambda header: header.update(__metadata__={"a": 1})),
    "a name twice": lambda stored: (
        (int.from_bytes(stored[:8], "little") + 13).to_bytes(8, "little")
        + b'{"a":1,"a":2,' + stored[9:]
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_safetensors_file_is_refused(
    gpt2: Program, tmp_path: Path, model: GPT2LMHeadModel, what: str
) -> None:
    path = tmp_path / "model" / "model.safetensors"
    path.write_bytes(HOSTILE[what](path.read_bytes()))
    write_tokens(tmp_path / "tokens.bin", [1] * 100)
    result = gpt2(
        "train", "--model", tmp_path / "model", "--data", tmp_path / "tokens.bin",
        "--length", 8, "--out", tmp_path / "out", fails=True,
    )  # fmt: skip
    assert b"model.safetensors: " in result.stderr
    assert (b"twice" in result.stderr) == (what == "a name twice")
    assert not (tmp_path / "out").exists()


CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "larger than the file": {"n_layer": 1 << 20},
    "larger than any memory": {"n_embd": 1 << 24, "n_head": 1 << 20},
    "another vocabulary": {"vocab_size": VOCABULARY - 1},
    "no heads": {"n_head": 0},
    "heads that do not divide": {"n_head": 7},
    "a fraction": {"n_embd": 48.5},
    "a negative size": {"n_positions": -32},
    "another model": {"model_type": "llama"},
    "another activation": {"activation_function": "relu"},
    "no epsilon": {"layer_norm_epsilon": 0},
}


@pytest.mark.parametrize("what", CONFIGURATIONS)
def test_a_configuration_that_does_not_fit_is_refused(
    gpt2: Program, tmp_path: Path, model: GPT2LMHeadModel, what: str
) -> None:
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **CONFIGURATIONS[what]}))
    gpt2("generate", "--model", tmp_path / "model", fails=True)


def test_files_of_llmc_that_are_damaged_are_refused(
    gpt2: Program, tmp_path: Path, model: GPT2LMHeadModel
) -> None:
    write_llmc(tmp_path / "model.bin", model, 3)
    stored = (tmp_path / "model.bin").read_bytes()
    numbers = {1: 4, 2: -1, 3: 1 << 30, 4: 1 << 30, 5: 0, 6: 1 << 30, 7: 3}
    damaged = [stored[:-1], stored + b"\0", stored[:1000], stored[:4]]
    for place, number in numbers.items():
        damaged.append(stored[: 4 * place] + struct.pack("<i", number) + stored[4 * place + 4 :])
    for changed in damaged:
        (tmp_path / "model.bin").write_bytes(changed)
        gpt2("generate", "--model", tmp_path / "model.bin", fails=True)
    for count, tokens in ((5, 4), (-1, 4), (1 << 30, 4), (40, 40)):  # the last: unknown tokens
        header = struct.pack("<256i", 20240520, 1, count, *[0] * 253)
        (tmp_path / "tokens.bin").write_bytes(header + struct.pack("<H", 60000) * tokens)
        gpt2(
            "train", "--data", tmp_path / "tokens.bin", "--length", 8, "--out", tmp_path / "out",
            fails=True,
        )  # fmt: skip
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("vocabulary", "merges"),
    [
        ("{}", "a b"),
        ('{"a": 7}', ""),
        ('{"a": -1}', ""),
        ('{"a": 0, "b": 0}', ""),
        ("[]", ""),
        ("{", ""),
        (None, ""),
        ("whole", None),
        ("whole", "a"),
        ("whole", "a zz"),
        ("whole", "a b"),
    ],
)
def test_a_vocabulary_that_is_none_is_refused(
    gpt2: Program, tmp_path: Path, vocabulary: str | None, merges: str | None
) -> None:
    if vocabulary == "whole":
        write_vocabulary(tmp_path)
        (tmp_path / "merges.txt").unlink()
    elif vocabulary is not None:
        (tmp_path / "vocab.json").write_text(vocabulary)
    if merges is not None:
        (tmp_path / "merges.txt").write_text(merges)
    (tmp_path / "text.txt").write_text("text")
    gpt2(
        "tokenize", "--data", tmp_path / "text.txt", "--tokenizer", tmp_path,
        "--out", tmp_path / "out.bin", fails=True,
    )  # fmt: skip
    assert not (tmp_path / "out.bin").exists()


def test_random_changes_of_a_file_end_no_program(
    gpt2: Program, tmp_path: Path, model: GPT2LMHeadModel
) -> None:
    path = tmp_path / "model" / "model.safetensors"
    stored = path.read_bytes()
    header = 8 + int.from_bytes(stored[:8], "little")
    for _ in range(60):
        changed = bytearray(stored)
        for _ in range(random.randrange(1, 4)):
            changed[random.randrange(header)] = random.choice(b'0123456789-"[]{},:.eE\x00\xff')
        path.write_bytes(changed)
        try:
            gpt2("generate", "--model", tmp_path / "model", "--tokens", 1)
        except AssertionError:
            gpt2("generate", "--model", tmp_path / "model", "--tokens", 1, fails=True)
