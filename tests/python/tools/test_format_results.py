# SPDX-License-Identifier: MIT
"""tools/format_results.py: files of another form are found and rewritten, figures as they were."""

from __future__ import annotations

import json

import pytest

import format_results


@pytest.fixture
def folder(tmp_path, monkeypatch):
    data = {"rows": [{"us": 1.25}, {"us": 2.5}], "host": []}
    (tmp_path / "old.json").write_text(json.dumps(data, indent=1), encoding="utf-8")
    (tmp_path / "new.json").write_text(format_results.to_text(data), encoding="utf-8")
    monkeypatch.setattr(format_results, "RESULTS", tmp_path)
    monkeypatch.setattr(format_results, "ROOT", tmp_path)
    return tmp_path


def test_a_file_of_another_form_fails_the_check_and_is_rewritten(folder, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["format_results.py", "--check"])
    assert format_results.main() == 1
    assert "old.json: has another form" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["format_results.py"])
    assert format_results.main() == 0
    assert (folder / "old.json").read_text() == (folder / "new.json").read_text()
    assert (folder / "old.json").read_text() == (
        '{\n "rows": [\n  {"us": 1.25},\n  {"us": 2.5}\n ],\n "host": []\n}\n'
    )
    monkeypatch.setattr("sys.argv", ["format_results.py", "--check"])
    assert format_results.main() == 0
