"""Help pages on any terminal, and completion in the shells that are here."""

import os
import shlex
import shutil
import subprocess
import sys

import pytest
import typer
from support.commands import run_dpwa

import dpwa
from dpwa.cli.help import summary
from dpwa.cli.main import app


def commands_below(command, path=()):
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands_below(below, (*path, name))


COMMANDS = dict(commands_below(typer.main.get_command(app)))
GROUPS = [path for path, command in COMMANDS.items() if getattr(command, "commands", None)]
PATHS = sorted(COMMANDS)


def help_of(path, columns):
    result = run_dpwa(*path, "--help", environment={"COLUMNS": str(columns)})
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def words_of(text):
    return [word for word in text.split() if word != "\\"]


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
@pytest.mark.parametrize("columns", [40, 60, 80, 200])
def test_help_breaks_no_word_and_fits_the_terminal(path, columns):
    text = help_of(path, columns)
    assert max(map(len, text.splitlines())) <= min(columns, 80)
    assert sorted(words_of(text)) == sorted(words_of(help_of(path, 80)))


@pytest.mark.parametrize("path", GROUPS, ids=" ".join)
def test_summaries_of_commands_are_not_cut(path):
    told = " ".join(help_of(path, 80).partition("Commands:")[2].split())
    assert "..." not in told.replace("w1, w2, ...", "")
    for name, command in COMMANDS[path].commands.items():
        assert f"{name} {summary(command.help)}" in told


def test_a_command_that_is_continued_is_still_one_for_the_shell():
    lines = help_of(("launch",), 40).splitlines()
    first = next(n for n, line in enumerate(lines) if "dpwa launch -n 4" in line)
    joined = " ".join(lines[first : first + 2]).replace("\\", "")
    assert lines[first].endswith(" \\")
    assert shlex.split(joined) == shlex.split("dpwa launch -n 4 -- python train.py --epochs 3")


def test_the_version_is_one_short_line():
    result = run_dpwa("--version")
    assert (result.exit_code, result.stdout) == (0, f"dpwa {dpwa.__version__}\n")


# Completion


@pytest.fixture
def environment(tmp_path):
    """Variables with a `dpwa` on the path that is this one, and a home that nobody else has."""
    program = tmp_path / "bin" / "dpwa"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m dpwa "$@"\n')
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "HOME": str(tmp_path), "ZDOTDIR": str(tmp_path)}


def run(command, environment):
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def completed_in_bash(words, environment):
    listed = " ".join(words)
    script = (
        'eval "$(dpwa --show-completion)"; '
        f"COMP_WORDS=({listed}); COMP_CWORD={len(words) - 1}; _dpwa_completion dpwa; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    return run(["bash", "--norc", "-c", script], environment).split()


@pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash here")
def test_bash_completes_commands_and_options(environment):
    assert completed_in_bash(["dpwa", "sta"], environment) == ["status"]
    assert completed_in_bash(["dpwa", "keys", "re"], environment) == ["remove"]
    assert completed_in_bash(["dpwa", "status", "--wa"], environment) == ["--watch"]


@pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash here")
def test_completion_is_installed_for_bash(environment, tmp_path):
    shown = run(["bash", "--norc", "-c", "dpwa --install-completion; true"], environment)
    assert "bash" in shown
    script = tmp_path / ".bash_completions" / "dpwa.sh"
    assert f"source '{script}'" in (tmp_path / ".bashrc").read_text()
    run(["bash", "--norc", "-c", f"source {script} && complete -p dpwa"], environment)


def test_zsh_gets_its_script_and_completions(environment):
    told = run(["dpwa"], {**environment, "_DPWA_COMPLETE": "source_zsh"})
    assert told.strip().startswith("#compdef dpwa")
    asked = {"_DPWA_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "dpwa sta"}
    assert '"status":"Show clock' in run(["dpwa"], {**environment, **asked})


@pytest.mark.skipif(not shutil.which("zsh"), reason="there is no zsh here")
def test_zsh_takes_the_script(environment):
    script = (
        "autoload -Uz compinit && compinit -u; "
        'eval "$(dpwa --show-completion)"; print -r -- $_comps[dpwa]'
    )
    assert run(["zsh", "-f", "-c", script], environment).strip() == "_dpwa_completion"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("demo", "--nodes", "x"), "'--nodes': expected a whole number (got x)"),
        (("demo", "--nodes", "1"), "'--nodes': expected a number of at least 2 (got 1)"),
        (("bench", "plane", "--size-mb", "z"), "'--size-mb': expected a number (got z)"),
    ],
)
def test_wrong_options_say_what_was_expected(arguments, message):
    result = run_dpwa(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
