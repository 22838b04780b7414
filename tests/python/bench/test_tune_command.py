# SPDX-License-Identifier: MIT
"""`transformer-kernels tune`: the calls that it times, shows and forgets, and the arguments it
refuses."""

from __future__ import annotations

import pytest
import torch

from transformer_kernels import _times, cli
from transformer_kernels.bench import tune
from transformer_kernels.measure import ceilings
from transformer_kernels.ops.linear._tuned import Times
from transformer_kernels.tune import in_turn


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


@pytest.fixture
def ours_wins(monkeypatch):
    """Ours takes half of PyTorch's time, which the rules choose."""
    monkeypatch.setattr(tune, "measure", lambda *_: Times(ours=1.0, torch=2.0))
    monkeypatch.setattr(tune, "in_turn", lambda *_: (2.0, 1.0))


@pytest.mark.usefixtures("ours_wins")
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
    assert f"4 of 4 are chosen otherwise than by rules; kept in {file}" in text
    assert "geometric mean of the gains: 2.000x" in text

    assert _tune("--list") == 0
    listed = capsys.readouterr().out
    assert all(f"{us['ours']:.1f}" in listed for *_, us in records)
    assert "by rules" not in listed

    assert _tune("--forget") == 0
    assert not file.exists()
    assert _tune("--forget") == 0


@pytest.mark.parametrize("again", [(2.0, 1.99), (1.0, 2.0)])
@pytest.mark.usefixtures("ours_wins")
def test_what_does_not_win_twice_is_left_to_the_rules(again, file, capsys, monkeypatch):
    arguments = ("linear", "--passes", "forward", "--dtype", "float32", "--shapes", "40x24x16")
    assert _tune(*arguments) == 0
    assert len(list(_times.records())) == 1
    monkeypatch.setattr(tune, "in_turn", lambda *_: again)
    assert _tune(*arguments) == 0
    assert not list(_times.records())
    assert "0 of 1 are chosen otherwise" in capsys.readouterr().out


def test_choices_are_timed_in_turn(file):
    x, weight = torch.randn(40, 24), torch.randn(16, 24)
    found = in_turn(x, weight, "linear float32 40x24x16 dx dweight", ("torch", "ours"), 0.0)
    assert min(found) > 0


@pytest.mark.cuda
@pytest.mark.parametrize("passes", ["forward", "both"])
def test_on_a_card_only_what_wins_is_kept(passes, file, capsys):
    arguments = ("--passes", passes, "--dtype", "bfloat16", "--shapes", "24x3584x3584,600x768x768")
    assert cli.main(["tune", "linear", *arguments, "--device", "cuda", "--seconds", "0.02"]) == 0
    kept = len(list(_times.records()))
    text = capsys.readouterr().out
    assert f"{kept} of 2 are chosen otherwise than by rules" in text
    assert float(text.rpartition(": ")[2].rstrip("x\n")) >= 1


def test_activations_are_timed_with_their_product(file, capsys):
    shapes = ("--shapes", "4x24x16", "--seconds", "0")
    assert _tune("linear_act", "--passes", "forward", "--dtype", "bfloat16", *shapes) == 0
    assert "timing: 1/1  linear_act bfloat16 4x24x16" in capsys.readouterr().out
    assert {timed for _, timed, _ in _times.records()} <= {"linear_act bfloat16 4x24x16"}


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
