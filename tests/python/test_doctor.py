# SPDX-License-Identifier: MIT
from __future__ import annotations

import argparse
import json

import pytest

from transformer_kernels import _library, doctor

H100 = doctor.Card("NVIDIA H100", (9, 0), "580.1", "81559 MiB")


def statuses(found: list[doctor.Finding]) -> dict[str, str]:
    return {finding.topic: finding.status for finding in found}


def test_cards_are_read_from_the_listing_of_nvidia_smi() -> None:
    listing = "NVIDIA H100, 80GB, 9.0, 580.1, 81559 MiB\nTesla K80, [N/A], 470.2, 11441 MiB\n"
    (card,) = doctor.parse_cards(listing)
    assert card == doctor.Card("NVIDIA H100, 80GB", (9, 0), "580.1", "81559 MiB")


@pytest.mark.parametrize(
    ("cards", "built", "available", "kernels", "expected"),
    [
        ([], None, False, False, {"card": "ok"}),
        ([H100], None, False, False, {"card": "ok", "cuda": "problem"}),
        ([H100], "13.0", False, True, {"card": "ok", "cuda": "ok"}),
        ([H100], "13.0", True, False, {"card": "ok", "cuda": "problem"}),
        ([H100], "13.0", True, True, {"card": "ok", "cuda": "ok"}),
        ([doctor.Card("V100", (7, 0), "1", "1 MiB")], "13.0", True, True, {"card": "note"}),
    ],
)
def test_what_stands_between_cards_and_kernels(
    monkeypatch: pytest.MonkeyPatch,
    cards: list[doctor.Card],
    built: str | None,
    available: bool,
    kernels: bool,
    expected: dict[str, str],
) -> None:
    monkeypatch.setattr(_library, "has_cuda_kernels", kernels)
    found = list(doctor.cuda_findings(cards, built, available))
    assert expected.items() <= statuses(found).items()
    hidden = bool(cards) and built is not None and not available
    assert any("CUDA_VISIBLE_DEVICES" in finding.advice for finding in found) == hidden
    assert all(finding.advice for finding in found if finding.status != "ok")


def test_a_cmake_too_old_for_the_cuda_kernels_is_told() -> None:
    assert doctor.cmake_finding("cmake version 3.31.10\n").status == "ok"
    old = doctor.cmake_finding("cmake version 3.25.1\n")
    assert (old.status, old.value) == ("note", "3.25.1")
    assert "3.31.10" in old.advice
    assert doctor.cmake_finding(None).status == "note"


def test_packages_that_an_extra_lacks() -> None:
    lines = [
        "torch>=2.10",
        "pytest>=8.0; extra == 'dev'",
        "no-such-package>=1; sys_platform == 'linux' and extra == 'dev'",
        'pytest>=8.0; extra == "bench"',
        "transformer-kernels[bench]; extra == 'dev'",
    ]
    assert doctor.missing_packages(lines) == {"dev": ["no-such-package"], "bench": []}


def test_table_and_json_tell_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    doctor.add_arguments(parser)
    status = doctor.run(parser.parse_args(["--json"]))
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert {"python", "torch", "cpu", "library", "card"} <= {f["topic"] for f in findings}
    assert status == int(any(f["status"] == "problem" for f in findings))
    assert doctor.run(parser.parse_args([])) == status
    table = capsys.readouterr().out
    assert all(f["value"] in table and f["advice"] in table for f in findings)


def test_a_problem_is_the_exit_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_library, "has_kernels", False)
    monkeypatch.setattr(_library, "missing_reason", "it was removed")
    assert doctor.run(argparse.Namespace(json=False)) == 1
    assert "it was removed" in capsys.readouterr().out
