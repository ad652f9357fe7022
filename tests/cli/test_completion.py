"""Completion in the shells that are here: commands, options and values, and soon enough."""

import json
import os
import pty
import select
import shlex
import shutil
import subprocess
import sys
import time

import pytest
from support.terminals import IN_A_TERMINAL, plain_lines
from support.times import HANGS_AFTER_S, at_most

SOON_S = 0.5  # from the key to the answer: else people stop pressing it
HEAVY = ("torch", "numpy", "zmq", "rich")
TYPED = {
    "dpwa pla": "dpwa plan",
    "dpwa keys re": "dpwa keys remove",
    "dpwa status --tim": "dpwa status --timeout-ms",
    "dpwa sim calibrate --ou": "dpwa sim calibrate --out",
    "dpwa launch --engine r": "dpwa launch --engine ray",
}
MARK = "typed:"
KILL_LINE, TO_START, TO_END = "\x15", "\x01", "\x05"

needs_bash = pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash here")
needs_zsh = pytest.mark.skipif(not shutil.which("zsh"), reason="there is no zsh here")


@pytest.fixture
def environment(tmp_path):
    """Variables with a `dpwa` on the path that is this one, and a home that nobody else has."""
    program = tmp_path / "bin" / "dpwa"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m dpwa "$@"\n')
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "HOME": str(tmp_path), "ZDOTDIR": str(tmp_path)}


def run(command, environment, cwd=None):
    done = subprocess.run(
        command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def completed_in_bash(lines, environment):
    script = 'eval "$(dpwa --show-completion)"\n' + "".join(
        f"COMP_WORDS=({line}); COMP_CWORD={line.count(' ')}; _dpwa_completion dpwa\n"
        'echo "${COMPREPLY[@]}"\n'
        for line in lines
    )
    return run(["bash", "--norc", "-c", script], environment).splitlines()


@needs_bash
def test_bash_completes_commands_and_options(environment):
    typed = ["dpwa sta", "dpwa keys re", "dpwa status --ti"]
    assert completed_in_bash(typed, environment) == ["status", "remove", "--timeout-ms"]


@needs_bash
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
    assert '"status":"Show the training clock' in run(["dpwa"], {**environment, **asked})


@needs_zsh
def test_zsh_takes_the_script(environment):
    script = (
        "autoload -Uz compinit && compinit -u; "
        'eval "$(dpwa --show-completion)"; print -r -- $_comps[dpwa]'
    )
    assert run(["zsh", "-f", "-c", script], environment).strip() == "_dpwa_completion"


# In shells as people use them


class Shell:
    """A shell on a terminal, in which keys are pressed."""

    def __init__(self, command, environment, folder):
        self._master, terminal = pty.openpty()
        self._process = subprocess.Popen(
            [*IN_A_TERMINAL, *command],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            cwd=folder,
            env={**environment, "TERM": "xterm", "COLUMNS": "200"},
        )
        os.close(terminal)
        self._shown = ""

    def press(self, keys):
        os.write(self._master, keys.encode())

    def line_with(self, mark):
        """Wait for a line that begins with a mark; return the rest of it."""
        end = time.monotonic() + HANGS_AFTER_S
        while time.monotonic() < end:
            for line in plain_lines(self._shown)[:-1]:
                if line.startswith(mark):
                    self._shown = ""
                    return line.removeprefix(mark).strip()
            if select.select([self._master], [], [], 0.1)[0]:
                self._shown += os.read(self._master, 65536).decode(errors="replace")
        raise AssertionError(f"no line with {mark!r} in {self._shown!r}")

    def completed(self, text):
        """Type a text and the tabulator; return what the line is then."""
        self.press(f"{text}\t{TO_START}echo '{MARK}{TO_END}'\r")
        return self.line_with(MARK)

    def close(self):
        self.press(f"{KILL_LINE}exit\r")
        try:
            self._process.wait(10)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._master)


def assert_completes(command, environment, folder):
    shell = Shell(command, environment, folder)
    try:
        shell.press("echo rea''dy\r")
        shell.line_with("ready")
        assert {text: shell.completed(text) for text in TYPED} == TYPED
    finally:
        shell.close()


@pytest.mark.slow
@needs_bash
def test_keys_in_a_bash(environment, tmp_path):
    start = tmp_path / "start"
    start.write_text('PS1="$ "\neval "$(dpwa --show-completion)"\n')
    assert_completes(["bash", "--rcfile", str(start), "-i"], environment, tmp_path)


@pytest.mark.slow
@needs_zsh
def test_keys_in_a_zsh(environment, tmp_path):
    start = 'PS1="$ "\nautoload -Uz compinit && compinit -u\neval "$(dpwa --show-completion)"\n'
    (tmp_path / ".zshrc").write_text(start)
    assert_completes(["zsh", "-i"], environment, tmp_path)


def test_an_answer_comes_soon_and_loads_nothing_heavy(environment, tmp_path):
    code = (
        "import json, sys\n"
        "from dpwa.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"print(json.dumps([name for name in {HEAVY} if name in sys.modules]), file=sys.stderr)"
    )
    asked = {"_DPWA_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "dpwa launch --engine r"}
    taken_s = []
    for _ in range(2):
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**environment, **asked},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
        taken_s.append(time.monotonic() - began)
        assert "ray" in done.stdout
        assert json.loads(done.stderr) == []
    assert min(taken_s) < at_most(SOON_S)
