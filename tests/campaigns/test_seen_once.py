"""Processes that share a data set, and are killed."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("seen_once.py")


def run(*arguments, timeout=280):
    command = [sys.executable, str(PROGRAM), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_item_is_acknowledged_once_though_two_of_three_processes_are_killed():
    small = ["--items", 1024, "--range-size", 64, "--step-s", 0.05]
    run("--runs", 1, "--nodes", 3, "--kills", 2, *small, timeout=100)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_items_that_workers_of_loaders_have_fetched_ahead_are_not_acknowledged():
    run("--runs", 1, "--workers", 2, "--nodes", 4, "--kills", 4, "--items", 8192, "--step-s", 0.2)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_each_item_is_acknowledged_once_though_processes_stand_still_and_are_left_out():
    run("--runs", 3, "--nodes", 4, "--kills", 2, "--stops", 3, "--step-s", 0.25)
