"""The pages that are made of the code say what the code says."""

import importlib
import inspect
from pathlib import Path

from support.processes import ended, start

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_of_public_names_is_up_to_date(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    written = (DOCS / "api.md").read_text(encoding="utf-8")
    assert written == importlib.import_module("generate").page("api.md"), "run docs/generate.py"


def test_the_pages_of_commands_and_settings_are_up_to_date():
    # In a process of its own: other tests register algorithms and topologies in this one.
    found = start(DOCS / "generate.py", "--check", "cli.md", "scenario-keys.md", "settings.md")
    with ended(found):
        _, errors = found.communicate(timeout=60)
    assert (found.returncode, errors) == (0, "")


def test_examples_keep_their_indentation(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    example = "    for x in y:\n        print(x)\n\n        z = 1\n"
    text = f"Ends.\n\n{example}\nArgs:\n    y: of:\n        more.\n"
    page = importlib.import_module("generate_api")._escaped(text)
    code = "```python\nfor x in y:\n    print(x)\n\n    z = 1\n```"
    assert page == f"Ends.\n\n{code}\n\n**Args**\n\n- `y`: of:\n        more."


def is_error(found):
    return inspect.isclass(found) and issubclass(found, Exception)


def test_every_public_error_is_on_it():
    from dpwa import errors

    written = (DOCS / "api.md").read_text(encoding="utf-8")
    names = [n for n, found in vars(errors).items() if is_error(found)]
    assert [name for name in names if f"### class `{name}(" not in written] == []
