"""Workers of tables that start far apart, stand still, or die while others do."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("table_starts.py")


def run(*arguments):
    command = [sys.executable, str(PROGRAM), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    print(done.stdout)
    return done


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("kind", "runs"), [("starts", 20), ("stops", 20), ("holds", 30)])
def test_nobody_who_lives_is_left_out_without_a_word(kind, runs):
    done = run(kind, "--runs", str(runs), "--seed", "1")
    assert done.returncode == 0, done.stdout + done.stderr
