"""docs/api.md is what its script makes of the docstrings."""

import inspect
import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(DOCS / "generate_api.py"))


def test_the_page_is_up_to_date(script):
    written = (DOCS / "api.md").read_text(encoding="utf-8")
    assert written == script["page"](), "run python docs/generate_api.py"


def is_error(found):
    return inspect.isclass(found) and issubclass(found, Exception)


def test_every_public_error_is_on_it():
    from dpwa import errors

    written = (DOCS / "api.md").read_text(encoding="utf-8")
    names = [n for n, found in vars(errors).items() if is_error(found)]
    assert [name for name in names if f"### class `{name}(" not in written] == []
