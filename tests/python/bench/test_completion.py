# SPDX-License-Identifier: MIT
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from transformer_kernels import _completion, cli

ASK = """
source script
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_shtab_transformer_kernels
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the script for bash, a file and a folder."""
    made = tmp_path_factory.mktemp("completion")
    (made / "script").write_text(_completion.script(cli.whole(), "bash"))
    (made / "result.json").touch()
    (made / "results").mkdir()
    return made


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["ra"], {"race"}),
        (["--ver"], {"--version"}),
        (["tune", "--co"], {"--conv1d"}),
        (["race", "ll"], {"llama"}),
        (["demo", "--device", "c"], {"cpu", "cuda"}),
        (["plot", "resu"], {"result.json", "results"}),
        (["bench", "--plots", "resu"], {"results"}),
    ],
)
def test_bash_completes_without_any_program(
    folder: Path, words: list[str], offered: set[str]
) -> None:
    command = ["/bin/bash", "--norc", "-c", ASK, "bash", "transformer-kernels", *words]
    answer = subprocess.run(
        command, cwd=folder, env={"PATH": "/none"}, capture_output=True, text=True, check=True
    )
    assert not answer.stderr
    assert {word.strip().rstrip("/") for word in answer.stdout.splitlines() if word} == offered


@pytest.mark.parametrize("shell", _completion.SHELLS)
def test_every_command_and_option_is_in_the_script(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--print-completion", shell])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for action in _completion._actions(cli.whole()):
        assert all(option in text for option in action.option_strings)
    assert all(command.name in text for command in cli.COMMANDS)


def test_without_shtab_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert cli.main(["--print-completion", "bash"]) == cli.FAILED
    assert "transformer-kernels[completion]" in capsys.readouterr().err


def test_an_unknown_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--print-completion", "cmd"])
    assert "invalid choice: 'cmd'" in capsys.readouterr().err
