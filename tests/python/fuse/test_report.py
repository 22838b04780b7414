# SPDX-License-Identifier: MIT
"""The command, and the picture of a plan."""

from __future__ import annotations

import json
import sys

import pytest
import torch

import transformer_kernels as tfk
from transformer_kernels.cli import main
from transformer_kernels.fuse import cost
from transformer_kernels.fuse.report import after, icicle
from transformer_kernels.fuse.site import Times
from transformer_kernels.testing.browser import BROWSER, WIDTHS, check_layout, measured
from transformer_kernels.testing.transformer import Transformer

FACTORY = """
import torch
from transformer_kernels.testing.transformer import Transformer

def model():
    return Transformer(), (torch.randn(2, 40, 32),)

def number():
    return 3
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "made_here.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "made_here", raising=False)
    return tmp_path


def test_the_command_shows_and_writes_a_plan(folder, capsys):
    arguments = ["made_here:model", "--no-measure", "--json", "plan.json", "--html", "plan.html"]
    assert main(["fuse", *arguments, "--patterns", "norm,mlp"]) == 0
    assert "FUSED: Transformer" in capsys.readouterr().out
    sites = json.loads((folder / "plan.json").read_text())["sites"]
    assert {site["pattern"] for site in sites} == {"norm", "mlp"}
    page = (folder / "plan.html").read_text()
    assert page.count("<figure>") == 2
    assert "blocks.0.mlp: " in page


@pytest.mark.parametrize(
    ("factory", "message"),
    [("made_here", "expected MODULE:FACTORY"), ("nowhere_at_all:model", "expected one that runs"),
     ("made_here:number", "returns int, expected an nn.Module")],
)  # fmt: skip
def test_bad_factories(folder, capsys, factory, message):
    assert main(["fuse", factory]) == 2
    assert message in capsys.readouterr().err


@pytest.fixture
def plan():
    return tfk.plan(Transformer(), (torch.randn(2, 40, 32),), measure=False)


def test_bytes_after_fusing_are_those_before_without_the_savings(plan):
    own = after(plan.sites, plan.moved)
    savings = sum(site.bytes[0] - site.bytes[1] for site in plan.sites if site.bytes)
    assert savings > 0
    assert sum(own.values()) == sum(plan.moved.values()) - savings
    assert all(count >= 0 for count in own.values())


def test_modules_lie_within_their_parents(plan):
    whole = sum(plan.moved.values())
    drawn = {box.path: box for box in icicle("before", plan.moved, whole).boxes}
    assert drawn[""].width == pytest.approx(1000)
    assert len(drawn) > 10
    for path, box in drawn.items():
        if path:
            parent = drawn[path.rpartition(".")[0]]
            assert box.y > parent.y
            assert parent.x - 1e-6 <= box.x
            assert box.x + box.width <= parent.x + parent.width + 1e-6


def test_the_page_tells_what_is_fused(plan):
    page = plan.to_html()
    assert page.count('class="fused"') > len({site.path for site in plan.sites}) / 2
    assert "http" not in page


def test_pictures_tell_launches_and_times_of_both_sides(monkeypatch):
    monkeypatch.setattr(cost, "_timed", lambda *_: Times(10.0, 5.0))
    plan = tfk.plan(Transformer(), (torch.randn(2, 40, 32),), patterns=["norm"])
    page = plan.to_html()
    before, after = page.split("<figure>")[1:3]
    sites = [site for site in plan.sites if site.launches]
    assert sites
    for picture, side in ((before, 0), (after, 1)):
        assert f"{sum(site.launches[side] for site in sites)} launches, " in picture
        for site in sites:
            assert f", {site.launches[side]} launches, {site.times[side]:.0f} us</title>" in picture


# Sorts the table of sites by its launches.
_SCRIPT = """
const heading = [...page.querySelectorAll("button")].find((e) => e.textContent === "launches");
heading.click();
const cells = page.querySelectorAll("td[data-name=launches]");
const pictures = all.filter((e) => e.tagName === "svg").map((e) => e.getBoundingClientRect().width);
return {order: [...cells].map((cell) => parseInt(cell.textContent)), pictures};
"""


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium (apt-get install chromium)")
def test_the_page_fits_a_telephone_and_its_table_sorts(plan, tmp_path):
    for seen, width in zip(measured(plan.to_html(), _SCRIPT, tmp_path), WIDTHS, strict=True):
        check_layout(seen, width)
        assert len(set(seen["order"])) > 1
        assert seen["order"] == sorted(seen["order"], reverse=True)
        assert len(seen["pictures"]) == 2
        assert all(0.8 * min(width, 1152) < picture < width for picture in seen["pictures"])
