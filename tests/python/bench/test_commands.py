# SPDX-License-Identifier: MIT
"""The table of commands: every line has a module, a help text and an example that it takes."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from transformer_kernels import __version__, _extras, cli
from transformer_kernels.measure import schema

ROOT = Path(__file__).parents[3]
EXAMPLES = ("gpt2_block", "fpga_transformer")  # need a package that the rest does not
NAMES = [command.name for command in cli.COMMANDS]


def test_commands_stand_in_alphabetical_order_with_a_line_each():
    assert sorted(set(NAMES)) == NAMES


def test_the_version_is_that_of_the_package(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"transformer-kernels {__version__}\n"


def test_the_installed_program_is_the_module():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'transformer-kernels = "transformer_kernels.cli:main"' in text
    import transformer_kernels.__main__ as module

    assert module.main is cli.main


def test_help_names_every_command(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    text = capsys.readouterr().out
    for command in cli.COMMANDS:
        assert re.search(rf"^ +{command.name}\s+{re.escape(command.summary)}$", text, re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_help_explains_every_argument_and_has_examples_that_parse(name, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main([name, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    examples = re.findall(r"^ *\$ transformer-kernels (.+)$", text, re.MULTILINE)
    assert examples
    for example in examples:
        words = shlex.split(example)
        assert words[0] == name
        assert cli.parser([name]).parse_args(words).run is not None
    own = cli.parser([name])._subparsers._group_actions[0].choices[name]
    assert [action.dest for action in own._actions if not action.help] == []


def test_a_default_stands_in_the_help_once(capsys):
    for name in NAMES:
        with pytest.raises(SystemExit):
            cli.main([name, "--help"])
    assert "(default: None)" not in (text := capsys.readouterr().out)
    assert "(default: False)" not in text
    assert "%(" not in text
    assert re.search(r"--seconds SECONDS +of timing per problem \(default: 0.5\)", text)


# Every optional package is hidden, as in an environment that only has PyTorch.
_WITHOUT_EXTRAS = """
import importlib.abc, runpy, sys
from transformer_kernels import _extras, cli

class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in _extras.EXTRA_OF:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
for command in cli.COMMANDS:
    try:
        cli.main([command.name, "--help"])
    except SystemExit as ended:
        assert ended.code == 0, command
for arguments in (["report", "absent.json"], ["plot", sys.argv[1]], ["demo", "--quick"]):
    assert cli.main(arguments) == 2, arguments
for example in sys.argv[2:]:
    try:
        runpy.run_path(example)
    except SystemExit as ended:
        assert ended.code == 2, example
    else:
        raise AssertionError(example)
"""


def test_packages_that_are_missing_are_named_with_their_extras(full_result, tmp_path):
    file = tmp_path / "result.json"
    schema.save(full_result, file)
    examples = [ROOT / "examples" / "python" / f"{name}.py" for name in EXAMPLES]
    child = subprocess.run(
        [sys.executable, "-c", _WITHOUT_EXTRAS, str(file), *map(str, examples)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    told = child.stderr.splitlines()
    extras = [("transformer-kernels", extra) for extra in ("bench", "bench", "demo")]
    extras += [(name, "demo") for name in EXAMPLES]
    for line, (program, extra) in zip(told, extras, strict=True):
        install = re.escape(f"pip install 'transformer-kernels[{extra}]'")
        found = re.fullmatch(rf"{program}: the package (\w+) is missing: {install}", line)
        assert found, line
        assert _extras.EXTRA_OF[found[1]] == extra


def test_an_import_that_no_extra_brings_is_an_error_of_ours(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformer_kernels.bench.commands.info", None)
    with pytest.raises(ImportError):
        cli.main(["info"])


def test_every_extra_that_is_named_brings_its_package():
    metadata = pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")
    project = metadata.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    distributions = {"prometheus_client": "prometheus-client", "sklearn": "scikit-learn"}
    for package, extra in _extras.EXTRA_OF.items():
        wanted = distributions.get(package, package)
        assert any(re.match(rf"{wanted}\b", line) for line in extras[extra]), (package, extra)


def test_an_interrupt_is_no_traceback(monkeypatch, capsys):
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("transformer_kernels.bench.commands.info.info", interrupted)
    assert cli.main(["info"]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_a_folder_in_place_of_a_file_is_no_traceback(tmp_path, capsys):
    assert cli.main(["plot", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err
