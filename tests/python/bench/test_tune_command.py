# SPDX-License-Identifier: MIT
"""`transformer-kernels tune`: the calls that it times, shows and forgets, and the arguments it
refuses."""

from __future__ import annotations

import pytest

from transformer_kernels import _times, cli
from transformer_kernels.measure import ceilings


@pytest.fixture
def file(tmp_path, monkeypatch):
    path = tmp_path / "tune.txt"
    monkeypatch.setenv("TFK_TUNE_FILE", str(path))
    monkeypatch.setattr(ceilings, "_SECONDS", 0.0)
    _times.read()
    yield path
    monkeypatch.undo()
    _times.read()


def _tune(*arguments):
    return cli.main(["tune", "--device", "cpu", *arguments])


def test_products_are_timed_shown_and_forgotten(file, capsys):
    shapes = ("--shapes", "40x24x16,1x24x16", "--seconds", "0", "--quiet")
    assert _tune("linear", "--dtype", "float32", "--conv1d", *shapes) == 0
    text = capsys.readouterr().out
    records = list(_times.records())
    assert [timed for _, timed, _ in records] == [
        f"linear float32 {rows}x24x16 by columns{gradients}"
        for gradients in ("", " dx dweight") for rows in (40, 1)
    ]  # fmt: skip
    assert "linear float32 40x24x16 by columns dx dweight" in text
    chosen = sum(us["ours"] <= us["torch"] for *_, us in records)  # by rules none is
    assert f"{chosen} of 4 are chosen otherwise than by rules; kept in {file}" in text

    assert _tune("--list") == 0
    listed = capsys.readouterr().out
    assert all(f"{us['ours']:.1f}" in listed for *_, us in records)
    assert "by rules" not in listed

    assert _tune("--forget") == 0
    assert not file.exists()
    assert _tune("--forget") == 0


def test_activations_are_timed_with_their_product(file, capsys):
    shapes = ("--shapes", "4x24x16", "--seconds", "0")
    assert _tune("linear_act", "--passes", "forward", "--dtype", "bfloat16", *shapes) == 0
    ((_, timed, _),) = _times.records()
    assert timed == "linear_act bfloat16 4x24x16"
    assert f"timing: 1/1  {timed}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["attention"], "op is 'attention', expected one of linear, linear_act, "),
        (["--passes", "backward"], "--passes is 'backward', expected one of forward, both"),
        (["--dtype", "int8"], "--dtype is 'int8', expected one of float32"),
        (["--shapes", "40x24"], "shape is '40x24', expected a form like 1024x768x3072"),
        (["--sweep", "huge"], "--sweep is 'huge', expected one of"),
        (["--seconds", "-1"], "--seconds is -1.0, expected at least 0"),
    ],
)
def test_bad_arguments(arguments, message, file, capsys):
    assert _tune(*arguments) == 2
    assert message in capsys.readouterr().err
    assert not file.exists()
