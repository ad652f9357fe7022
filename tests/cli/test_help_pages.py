"""Help pages on any terminal, whose examples are commands that exist."""

import re
import shlex
from functools import cache

import pytest
from support.commands import run_dpwa

import dpwa
from dpwa.cli.main import COMMAND


def commands_below(command, path=()):
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands_below(below, (*path, name))


COMMANDS = dict(commands_below(COMMAND))
EXAMPLES = "Examples:"
GROUPS = [path for path, command in COMMANDS.items() if getattr(command, "commands", None)]
PATHS = sorted(COMMANDS)


@cache
def help_of(path, columns):
    result = run_dpwa(*path, "--help", environment={"COLUMNS": str(columns)})
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def words_of(text):
    return [word for word in text.split() if word != "\\"]


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_help_breaks_no_word_and_fits_the_terminal(path):
    assert f"dpwa {' '.join(path)}".strip() in help_of(path, 80)
    for columns in (80, 200):
        text = help_of(path, columns)
        prose = [line for line in text.splitlines() if not line.startswith("      dpwa ")]
        assert max(map(len, prose)) <= 80
        assert sorted(words_of(text)) == sorted(words_of(help_of(path, 80)))


@pytest.mark.parametrize("path", GROUPS, ids=" ".join)
def test_summaries_of_commands_are_not_cut(path):
    told = " ".join(help_of(path, 80).partition("Commands:")[2].split())
    assert "..." not in told.replace("w1, w2, ...", "")
    for name, command in COMMANDS[path].commands.items():
        assert f"{name} {command.short_help}" in told


def examples_of(command):
    """The commands beneath `Examples:` in a help text."""
    _, _, told = (command.help or "").partition(f"{EXAMPLES}\n")
    return [line.strip() for line in told.partition("\n\n")[0].splitlines()]


def parsed(words):
    """Parse a command line as far as it goes, and run nothing; return the path of the command."""
    name, *arguments = words
    assert name == "dpwa"
    command, parent, path = COMMAND, None, ()
    while True:
        context = command.make_context(command.name, arguments, parent=parent)
        rest = [*context._protected_args, *context.args]
        if not getattr(command, "commands", None) or not rest:
            return path
        command, parent, arguments = command.commands[rest[0]], context, rest[1:]
        path = (*path, command.name)


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_every_command_has_examples_that_are_commands(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    examples = examples_of(COMMANDS[path])
    assert 1 <= len(examples) <= 4, "what does a user type? See `Examples:` in dpwa/cli/status.py"
    assert help_of(path, 80).count(f"  {EXAMPLES}\n      dpwa ") == 1
    found = []
    for line in examples:
        for command in line.split(" | "):
            words = shlex.split(re.sub(r" > \S+$", "", command))
            if words[0] == "dpwa":
                found.append(parsed(words))
    assert any(each[: len(path)] == path for each in found)


def test_the_version_is_one_short_line():
    result = run_dpwa("--version")
    assert (result.exit_code, result.stdout) == (0, f"dpwa {dpwa.__version__}\n")
