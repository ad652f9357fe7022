"""The page of the dashboard in a browser: for everybody, and whatever the names of nodes are."""

from dataclasses import replace

import pytest
from support.dashboards import ToldRun, served
from support.nodes import eventually

from dpwa.node.report import EndingReport

expect = pytest.importorskip("playwright.sync_api", reason="needs pip install dpwa[e2e]").expect

HOSTILE = ["<img src=x onerror=alert(1)>", "[red]w2[/red]", "javascript:alert(1)", "a/b?c#d", "../"]


@pytest.fixture
def url():
    names = ["w1", "w2", "w3", "w4", *HOSTILE]
    with served(ToldRun(names).view) as address:
        yield address


def opened(page, address):
    """Open a page, and wait until it shows the run."""
    page.goto(address)
    last = "#plot-speed .uplot:visible, #plot-budget .uplot:visible"  # all else is drawn before
    page.wait_for_selector(last)
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


def test_the_last_label_of_the_time_axis_is_whole(url, page):
    opened(page, url)
    at_the_edge = page.evaluate("""async () => {
      const { Plot } = await import(new URL("static/plot.js", document.baseURI));
      const box = document.querySelector("#plot-loss .plot");
      box.replaceChildren();
      const line = { name: "w1", values: [3, 4, 5], stroke: "black", width: 1, dash: [] };
      new Plot(box, String).show([1700000000, 1700000010, 1700000020], [line], "");
      await new Promise((drawn) => setTimeout(drawn, 100));
      const canvas = box.querySelector("canvas");
      const { width, height } = canvas;
      const pixels = (x) => canvas.getContext("2d").getImageData(x, 0, 1, height).data;
      return [0, width - 2, width - 1].map((x) => pixels(x).some(Boolean));
    }""")
    assert at_the_edge == [False, False, False]


@pytest.mark.slow
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
        table = page.locator("#node table" if view else "#nodes table").locator("..")
        is_cut = table.evaluate("box => box.scrollWidth > box.clientWidth")
        assert table.locator("..").get_by_text("Scroll sideways").is_visible() == is_cut
        assert is_cut or width > 360


def test_it_can_be_used_by_keyboard_alone(url, page):
    def press(*keys):
        for key in keys:
            page.keyboard.press(key)

    opened(page, url)
    press("Tab")
    assert focused(page) == "Skip to the content"
    press("Enter", "Tab")  # past the header, to what is the matter
    assert focused(page) == "w3"
    press("Enter")
    page.wait_for_selector("#node", state="visible")
    assert focused(page) == "w3"  # the heading of its view
    assert page.title() == "w3 · dpwa"
    press("Shift+Tab")
    assert focused(page) == "← All nodes"
    press("Enter")
    page.wait_for_selector("#overview", state="visible")
    assert focused(page) == "w3"  # where one left

    page.focus("#topology a[tabindex='0']")  # one stop of Tab, and arrows from there
    assert page.locator("#topology a[tabindex='0']").count() == 1
    press("Home", "ArrowRight", "ArrowRight", "ArrowLeft")
    second = page.locator("#topology a").nth(1).get_attribute("aria-label")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == second
    page.wait_for_selector("#topology .readout:has-text('loss')")
    press("Enter")
    page.wait_for_selector("#node", state="visible")


def focused(page):
    return page.evaluate("document.activeElement.textContent")


@pytest.mark.slow
def test_a_table_is_sorted_by_the_buttons_of_its_head(url, page):
    opened(page, url)
    heads, names = page.locator("#nodes thead th"), page.locator("#nodes tbody th")
    head = heads.filter(has_text="Steps/s")
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    page.mouse.move(0, 0)
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert names.first.inner_text() == "w2"  # the slow one
    assert page.locator("#nodes [aria-sort]").count() == 1


@pytest.mark.slow
def test_a_chosen_theme_is_remembered(url, page):
    page.emulate_media(color_scheme="light")
    opened(page, url)
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    button = page.locator("#theme")
    while "dark" not in button.inner_text():
        button.click()
    dark = page.evaluate(ground)
    assert dark != light
    page.reload()
    assert page.evaluate(ground) == dark
    assert "dark" in button.inner_text()


@pytest.mark.slow
def test_the_theme_of_the_system_is_followed_until_another_is_chosen(url, page):
    page.emulate_media(color_scheme="light")
    opened(page, url)
    ground = "getComputedStyle(document.body).backgroundColor"
    line = "document.querySelector('#legend .swatch').style.borderTopColor"  # as on the canvas
    light, light_line = page.evaluate(ground), page.evaluate(line)
    page.emulate_media(color_scheme="dark")
    eventually(lambda: page.evaluate(line) != light_line)
    dark = page.evaluate(ground)
    assert dark != light
    button = page.locator("#theme")
    assert button.inner_text() == "Theme: system"
    button.click()
    eventually(lambda: page.evaluate(line) == light_line)
    assert page.evaluate(ground) == light
    page.emulate_media(color_scheme="light")
    while button.inner_text() != "Theme: dark":
        button.click()
    assert page.evaluate(ground) == dark


@pytest.mark.slow
def test_curves_of_many_nodes_highlight_who_is_chosen(url, page):
    opened(page, url)
    expect(page.locator("#legend li")).to_have_count(4 + len(HOSTILE))
    page.select_option("#highlight", "[red]w2[/red]")
    page.wait_for_selector("#topology .readout:has-text('[red]w2[/red]: live')")
    page.check("#log")
    page.select_option("#kinds", "joined")
    expect(page.locator("#events li")).to_have_count(4 + len(HOSTILE))


def test_a_run_that_has_ended_needs_no_attention_and_its_curves_tell_of_the_end(page):
    run = ToldRun(["w1", "w2", "w3"])

    def view():
        told = run.view()
        last = {node.name: node.answer.model_copy(update={"ended": ""}) for node in told.nodes}
        nodes = tuple(replace(n, answer=last[n.name], silent_s=9.0) for n in told.nodes)
        return replace(told, through="", nodes=nodes, has_ended=True)

    with served(view) as address:
        opened(page, address)
        expect(page.locator("#summary")).to_have_text("3 nodes: 3 finished · the run has ended")
        expect(page.locator("#attention li")).to_have_count(0)
        loss, speed = (page.locator(f"#plot-{name} figcaption") for name in ("loss", "speed"))
        expect(loss).to_contain_text("Loss of 3 nodes when they last answered: from w")
        expect(speed).to_have_text("Steps per second: no node reports this value any more.")


def test_a_caption_counts_nodes_that_finish_and_calls_only_those_live_that_are(page):
    run = ToldRun(["w1", "w2"])

    def view():
        told = run.view()
        first = told.nodes[0]
        ending = EndingReport(is_over=False)
        finishing = replace(first, answer=first.answer.model_copy(update={"ending": ending}))
        return replace(told, nodes=(finishing, told.nodes[1]))

    with served(view) as address:
        opened(page, address)
        expect(page.locator("#summary")).to_contain_text("1 live, 1 finishing")
        expect(page.locator("#plot-loss figcaption")).to_contain_text("Loss of 2 nodes: from w")
