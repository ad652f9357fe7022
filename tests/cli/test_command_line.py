from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import metadata

import pytest
import typer
import zmq
from support.launched import DPWA
from support.launched import dpwa as run

import dpwa
from dpwa.cli import main as command_line
from dpwa.errors import AddressError, ConfigError, DpwaError, PeerError, UnknownNameError
from dpwa.wire.limits import PROTOCOL_VERSION


def outcome_of(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> object:
    """Return the exit code of a command that raises this error."""
    app = typer.Typer(rich_markup_mode=None)

    @app.command()
    def fail() -> None:
        raise error

    monkeypatch.setattr(command_line, "COMMAND", typer.main.get_command(app))
    monkeypatch.setattr(sys, "argv", ["dpwa"])
    with pytest.raises(SystemExit) as end:
        command_line.main()
    return end.value.code


COMMANDS = sorted(command_line.COMMAND.commands)


def test_the_help_lists_every_command() -> None:
    listed = run("--help").stdout.partition("Commands:")[2]
    names = re.findall(r"^  (\w+)", listed, re.MULTILINE)
    assert sorted(names) == COMMANDS


@pytest.mark.parametrize(
    ("word", "heavy"),
    [
        ("--help", {"torch", "rich", "matplotlib", "pydantic", "numpy", "zmq"}),
        ("version", {"torch", "numpy"}),
    ],
)
def test_nothing_heavy_is_loaded(word: str, heavy: set[str]) -> None:
    code = (
        "import sys\n"
        "from dpwa.cli.main import main\n"
        f"sys.argv = ['dpwa', {word!r}]\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"heavy = {heavy} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("arguments", [["no-such-command"], ["version", "--no-such-option"]])
def test_wrong_usage_ends_with_2(arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert f"No such {'option' if len(arguments) > 1 else 'command'}" in done.stderr
    assert done.stdout == ""


def test_no_command_shows_the_help() -> None:
    done = run()
    assert done.returncode == 2
    assert "Commands:" in done.stdout + done.stderr


def test_version_is_printed_for_people_and_programs() -> None:
    lines = run("version").stdout.splitlines()
    assert lines[:2] == [f"dpwa {dpwa.__version__}", f"protocol {PROTOCOL_VERSION}"]
    found = json.loads(run("version", "--json").stdout)
    assert [line.partition(" ")[0] for line in lines] == list(found)
    assert found["dpwa"] == dpwa.__version__
    assert found["protocol"] == PROTOCOL_VERSION
    versions = {name: metadata.version(name) for name in ("torch", "numpy", "pyzmq", "msgpack")}
    assert versions.items() <= found.items()
    assert found["libzmq"] == zmq.zmq_version()
    assert found["matplotlib"] == metadata.version("matplotlib")  # of an extra


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (UnknownNameError("no node is named 'w9'"), 2, "dpwa: no node is named 'w9'\n"),
        (AddressError("w1: in use\nw2: in use"), 2, "dpwa: w1: in use\ndpwa: w2: in use\n"),
        (ConfigError(["a.yaml:1:2: x", "a.yaml:3:4: y"]), 2, "a.yaml:1:2: x\na.yaml:3:4: y\n"),
        (PeerError("nobody answered"), 3, "dpwa: nobody answered\n"),
    ],
)
def test_an_expected_error_is_a_message_and_a_code(
    error: DpwaError,
    code: int,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert outcome_of(error, monkeypatch) == code
    assert capsys.readouterr() == ("", text)


def test_an_interrupt_ends_with_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert outcome_of(KeyboardInterrupt(), monkeypatch) == 130
    assert capsys.readouterr() == ("", "")


def test_the_exit_code_of_a_command_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcome_of(typer.Exit(3), monkeypatch) == 3


def test_a_bug_keeps_its_traceback_and_shows_no_local_variables() -> None:
    code = (
        "import typer\n"
        "from dpwa.cli import main\n"
        "@main.app.command()\n"
        "def fail():\n"
        "    password = 'open' + 'sesame'\n"
        "    raise ZeroDivisionError('a bug')\n"
        "main.COMMAND = typer.main.get_command(main.app)\n"
        "import sys\n"
        "sys.argv = ['dpwa', 'fail']\n"
        "main.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback (most recent call last):")
    assert done.stderr.endswith("ZeroDivisionError: a bug\n")
    assert "opensesame" not in done.stderr


def test_a_closed_pipe_is_quiet() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as nobody:
        done = subprocess.run([*DPWA, "version"], stdout=nobody, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "")


def test_ctrl_c_before_a_command_has_begun_ends_it_quietly() -> None:
    code = (
        "import sys, types\n"
        "class Interrupted(types.ModuleType):\n"
        "    def __getattr__(self, name): raise KeyboardInterrupt\n"
        "sys.modules['dpwa.cli.main'] = Interrupted('dpwa.cli.main')\n"
        "from dpwa.__main__ import main\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
