"""Tests that need the libraries of an extra: imported in a test, because that takes seconds."""

from importlib.util import find_spec

import pytest


def needs(*libraries, extra=""):
    """Return the mark of tests that are skipped without these libraries."""
    missing = any(find_spec(library) is None for library in libraries)
    reason = f"needs the extra: pip install dpwa[{extra or libraries[0]}]"
    return pytest.mark.skipif(missing, reason=reason)
