"""The pages that are made of the code say what the code says."""

import importlib
import inspect
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_of_public_names_is_up_to_date(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    written = (DOCS / "api.md").read_text(encoding="utf-8")
    assert written == importlib.import_module("generate").page("api.md"), "run docs/generate.py"


def test_the_pages_of_commands_and_settings_are_up_to_date():
    # In a process of its own: other tests register algorithms and topologies in this one.
    command = [
        sys.executable,
        DOCS / "generate.py",
        "--check",
        "cli.md",
        "scenario-keys.md",
        "settings.md",
    ]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stderr) == (0, "")


def is_error(found):
    return inspect.isclass(found) and issubclass(found, Exception)


def test_every_public_error_is_on_it():
    from dpwa import errors

    written = (DOCS / "api.md").read_text(encoding="utf-8")
    names = [n for n, found in vars(errors).items() if is_error(found)]
    assert [name for name in names if f"### class `{name}(" not in written] == []
