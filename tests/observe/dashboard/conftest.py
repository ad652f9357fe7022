"""A browser for the tests of the page."""

import shutil

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser():
    """Chromium, without a window."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs pip install dpwa[e2e]")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip("needs Chromium (on Debian: apt-get install chromium)")
    with playwright.sync_playwright() as running:
        found = running.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def page(browser):
    """An empty page; whatever its console calls an error fails the test."""
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        found, errors = context.new_page(), []
        found.set_default_timeout(10_000)
        expected = []  # parts of errors that belong to the test
        found.expected_errors = expected
        found.on("pageerror", lambda error: errors.append(str(error)))
        found.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
        yield found
        unexpected = [e for e in errors if not any(part in e for part in expected)]
        assert unexpected == []
