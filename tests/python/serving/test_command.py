# SPDX-License-Identifier: MIT
"""The command serve, before it serves anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from transformer_kernels import cli

pytest.importorskip("transformer_kernels.serving.app", reason="the extra serve brings it")

from transformer_kernels.serving import Limits, is_loopback
from transformer_kernels.serving.command import TOKEN, token_of


def said(capsys: pytest.CaptureFixture, *arguments: str) -> str:
    assert cli.main(["serve", "none.gguf", *arguments]) == 2
    return str(capsys.readouterr().err)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_a_public_address_needs_a_token(
    host: str, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    assert "which other machines see: give a token" in said(capsys, "--host", host)
    monkeypatch.setenv(TOKEN, "secret")
    assert "none.gguf" in said(capsys, "--host", host)  # is what fails next


def test_loopback_addresses() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.1.2.3", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "localhost.example.org")))


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--sequences", "--sequences is 0, expected at least 1"),
        ("--queue", "--queue is 0, expected at least 1"),
        ("--max-body", "body_bytes is 0, expected more than 0"),
        ("--timeout", "seconds is 0.0, expected more than 0"),
    ],
)
def test_bounds_of_nothing_are_named(
    option: str, words: str, capsys: pytest.CaptureFixture
) -> None:
    assert words in said(capsys, option, "0")


def test_tokens_of_files_and_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text("abc\n")
    monkeypatch.setenv(TOKEN, "def")
    assert (token_of(file), token_of(None)) == ("abc", "def")
    monkeypatch.delenv(TOKEN)
    assert token_of(None) is None
    for bad in ("", "\n", "two\nlines", "\u00e9"):
        file.write_text(bad)
        with pytest.raises(ValueError, match="holds no token"):
            token_of(file)


def test_limits_are_above_0() -> None:
    Limits().check()
    with pytest.raises(ValueError, match="patience is nan"):
        Limits(patience=float("nan")).check()
