"""Docstrings: the examples in them are right."""

import doctest
from copy import deepcopy
from importlib import import_module
from pathlib import Path

import pytest

DPWA = Path(__file__).parents[1] / "dpwa"
WITH_EXAMPLES = sorted(
    ".".join(path.relative_to(DPWA.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in DPWA.rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_the_examples_are_right(name, monkeypatch):
    module = import_module(name)
    if hasattr(module, "_REGISTRY"):  # where examples may register what other tests do not expect
        monkeypatch.setattr(module, "_REGISTRY", deepcopy(module._REGISTRY))
    found = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert found.failed == 0
    assert found.attempted > 0
