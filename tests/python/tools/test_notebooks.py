# SPDX-License-Identifier: MIT
"""The notebooks run from beginning to end in fresh kernels, and are stored with small outputs."""

from __future__ import annotations

from pathlib import Path

import pytest

import run_notebooks

NOTEBOOKS = sorted(run_notebooks.FOLDER.glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_is_stored_with_its_outputs(path: Path) -> None:
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    assert run_notebooks.problems(path) == []
    run_notebooks.execute(path)


def test_what_is_wrong_with_a_stored_notebook_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbformat = pytest.importorskip("nbformat")
    path = tmp_path / "bad.ipynb"
    output = nbformat.v4.new_output("error", ename="E", evalue=str(run_notebooks.ROOT))
    cell = nbformat.v4.new_code_cell("1 / 0", outputs=[output])
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)
    monkeypatch.setattr(run_notebooks, "MOST_BYTES", 10)
    size = path.stat().st_size
    assert run_notebooks.problems(path) == [
        f"bad.ipynb has {size} bytes, expected 10 at most",
        "bad.ipynb was not run; call tools/run_notebooks.py --write",
        "bad.ipynb holds an error",
        "bad.ipynb names the folder of the checkout",
    ]
