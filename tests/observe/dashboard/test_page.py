"""The page of the dashboard in a browser: for everybody, and whatever the names of nodes are."""

import pytest
from support.dashboards import ToldRun, served

pytest.importorskip("playwright", reason="needs pip install dpwa[e2e]")

HOSTILE = ["<img src=x onerror=alert(1)>", "[red]w2[/red]", "javascript:alert(1)", "a/b?c#d", "../"]


@pytest.fixture
def url():
    names = ["w1", "w2", "w3", "w4", *HOSTILE]
    with served(ToldRun(names).view) as address:
        yield address


def opened(page, address):
    """Open a page, and wait until it shows the run."""
    page.goto(address)
    page.wait_for_selector("#attention li:visible, #node-facts div:visible")
    page.wait_for_selector(".uplot canvas:visible")
    return page


def test_names_of_nodes_are_text(url, page):
    page.on("dialog", lambda _: pytest.fail("a name was run"))
    opened(page, url)
    rows = page.locator("#nodes tbody a")
    assert set(HOSTILE) <= set(rows.all_inner_texts())
    assert page.locator("img").count() == 0
    for name in HOSTILE:
        rows.get_by_text(name, exact=True).click()
        page.wait_for_selector("#links tbody a")  # its own figures have come
        assert page.inner_text("#node-name") == name
        assert page.inner_text("#node-problem") == ""
        page.go_back()
        page.wait_for_selector("#overview", state="visible")
    assert page.locator("img").count() == 0


@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_is_accessible_and_never_wider_than_the_screen(url, page, theme, width):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page.emulate_media(color_scheme=theme, reduced_motion="reduce")
    page.set_viewport_size({"width": width, "height": 800})
    for view in ("", "#node/w2"):
        page.goto("about:blank")  # else only the part behind # changes
        opened(page, url + view)
        found = axe.run(page)
        assert [v["id"] for v in found.response["violations"]] == [], found.generate_report()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
