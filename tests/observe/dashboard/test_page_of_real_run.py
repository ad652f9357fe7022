"""The page beside real processes: who is slow, who has died, and where it reads from then."""

import json
import re
import time
from contextlib import contextmanager

import pytest
from support.dashboards import dashboard
from support.nodes import config_of
from support.ports import free_ports
from support.processes import ended, start
from support.times import at_most

pytest.importorskip("playwright", reason="needs pip install dpwa[e2e]")
pytestmark = pytest.mark.slow

COUNT = 8
SLOW, KILLED = "w3", "w5"
STEP_S, SLOW_STEP_S = 0.2, 1.0
NOTICED_S = 10.0
MOVED_S = 5.0


@contextmanager
def run(folder):
    """Real nodes, one of which is slow; yields their processes by name, and a place of w1."""
    config = config_of(COUNT)
    path = folder / "nodes.json"
    path.write_text(json.dumps(config))
    names = [node["name"] for node in config["nodes"]]
    seconds = {name: SLOW_STEP_S if name == SLOW else STEP_S for name in names}
    nodes = {name: start("train.py", path, name, s) for name, s in seconds.items()}
    with ended(*nodes.values()):
        yield nodes, f"127.0.0.1:{config['nodes'][0]['port']}"


def seconds_until(page, selector, text):
    """Wait until an element has a text; return how long that took."""
    began = time.monotonic()
    page.locator(selector).filter(has_text=re.compile(text)).first.wait_for(timeout=60_000)
    return time.monotonic() - began


def test_the_slow_and_the_dead_are_named_and_another_node_is_read_through(page, tmp_path):
    with run(tmp_path) as (nodes, place), dashboard("--at", place) as (url, _):
        page.goto(url)
        seconds_until(page, "#summary", f"{COUNT} nodes: {COUNT} live · reported by w1")
        took = seconds_until(page, "#attention li", rf"{SLOW} takes .* x slower")
        assert took < at_most(NOTICED_S)
        nodes[KILLED].kill()
        took = seconds_until(page, "#attention li", f"{KILLED} has not answered for")
        assert took < at_most(NOTICED_S)
        seconds_until(page, "#announced", f"{KILLED} has not answered for")  # to screen readers
        seconds_until(page, "#nodes tr", f"{KILLED}.*gone for")
        seconds_until(page, "#summary", f"{COUNT} nodes: .*1 gone")
        page.wait_for_selector(f"#topology a[aria-label^={KILLED}][data-state=silent]")
        nodes["w1"].kill()
        moved = "w1 does not answer any more: w2 reports on the others now"
        took = seconds_until(page, "#moved", moved)
        assert took < at_most(MOVED_S)
        seconds_until(page, "#summary", "reported by w2")
        seconds_until(page, "#attention li", "w1 has not answered for")


def test_a_page_without_its_server_says_so_and_goes_on_when_it_is_back(page, tmp_path):
    page.expected_errors.append("net::ERR_")
    port = free_ports(1)[0]
    with run(tmp_path) as (_, place):
        with dashboard("--at", place, port=port) as (url, how_it_ended):
            page.goto(url)
            seconds_until(page, "#summary", f"{COUNT} live")
        assert how_it_ended == [0, ""]
        seconds_until(page, "#lost:visible", "No connection to the dashboard's server since")
        with dashboard("--at", place, port=port):
            page.locator("#lost").wait_for(state="hidden", timeout=30_000)
            seconds_until(page, "#summary", f"{COUNT} live")


def test_a_page_whose_token_is_good_no_more_says_that_it_needs_one(page):
    page.expected_errors += ["net::ERR_", "401"]
    port, options = free_ports(1)[0], ("--at", "127.0.0.1:1", "--host", "0.0.0.0")
    with dashboard(*options, port=port) as (address, _):
        page.goto(address.replace("0.0.0.0", "127.0.0.1"))
        seconds_until(page, "#summary", "no node answers")
    with dashboard(*options, port=port) as (address, _):  # with another token
        seconds_until(page, "#lost:visible", "This page needs a token")
        page.goto(address.replace("0.0.0.0", "127.0.0.1"))
        seconds_until(page, "#summary", "no node answers")
        assert page.is_hidden("#lost")
