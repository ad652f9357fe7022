"""What the page is told: everything once, thinned when there is much of it, and as plain JSON."""

import asyncio
import json
import math
from contextlib import aclosing

from dpwa.observe.dashboard.server import Feed, Streams
from dpwa.observe.events import RunEvent
from dpwa.observe.figures import INDEX, NAMES
from dpwa.observe.history import OTHER_NODE, SampleHistory
from dpwa.observe.run_view import Followed, RunView

START = 1e9


class Run:
    """A run that is told by hand."""

    def __init__(self, nodes):
        self.histories = {name: SampleHistory(len(NAMES)) for name in nodes}
        self.events = []
        self.seconds = 0

    def go_on(self, seconds, **figures):
        for _ in range(seconds):
            self.seconds += 1
            values = [math.nan] * len(NAMES)
            told = {"steps": 10.0 * self.seconds, "clock": 1.0, **figures}
            for name, value in told.items():
                values[INDEX[name]] = value
            for history in self.histories.values():
                history.add_sample(START + self.seconds, values)

    def view(self):
        nodes = tuple(
            Followed(name, f"tcp://h:{port}", None, 0.0, "", history, SampleHistory(4, OTHER_NODE))
            for port, (name, history) in enumerate(self.histories.items(), 1)
        )
        return RunView(START + self.seconds, "w1", nodes, tuple(self.events))


def test_every_sample_is_told_once_whatever_is_asked_in_between():
    run = Run(["w1"])
    feed, times = Feed(run.view), []
    run.go_on(30)
    times += [point[0] for point in feed.snapshot()["points"]["w1"]]
    for seconds in (1, 3, 0, 7):
        run.go_on(seconds)
        times += [point[0] for point in feed.update()["points"].get("w1", [])]
        feed.node("w1")
    assert times == [START + second for second in range(1, 42)]
    assert [p[0] for p in feed.snapshot()["points"]["w1"]] == times  # for who comes later


def test_speed_is_that_since_the_sample_before_also_for_the_first_of_an_update():
    run = Run(["w1"])
    feed = Feed(run.view)
    run.go_on(5)
    feed.snapshot()
    run.go_on(2)
    assert [point[3] for point in feed.update()["points"]["w1"]] == [10.0, 10.0]


def test_a_restart_has_no_speed():
    run = Run(["w1"])
    run.go_on(5)
    run.go_on(1, steps=3.0)
    assert Feed(run.view).snapshot()["points"]["w1"][-1][3] is None


def test_events_are_told_once():
    run = Run(["w1"])
    feed = Feed(run.view)
    run.events = [RunEvent(START, "w1", "joined", "w2")]
    assert len(feed.snapshot()["events"]) == 1
    run.events += [RunEvent(START + 1, "w1", "left", "w2")]
    assert [event["kind"] for event in feed.update()["events"]] == ["left"]
    assert feed.update()["events"] == []
    assert len(feed.snapshot()["events"]) == 2


def test_what_is_no_number_is_json_all_the_same():
    run = Run(["w1"])
    run.go_on(3, loss=math.inf, consensus_distance=math.nan)
    feed = Feed(run.view)
    snapshot = feed.snapshot()
    json.dumps([snapshot, feed.update(), feed.node("w1")], allow_nan=False)
    assert snapshot["nodes"][0]["loss"] == "inf"
    assert snapshot["nodes"][0]["verdicts"] == []  # nobody has told of it


def test_an_hour_of_64_nodes_is_thinned_to_a_page_of_a_few_megabytes():
    run = Run([f"w{number}" for number in range(64)])
    run.go_on(4000, loss=0.123456789, train_s=1.0)
    snapshot = Feed(run.view).snapshot()
    assert len(json.dumps(snapshot)) < 3e6
    points = snapshot["points"]["w5"]
    assert points[-1][0] == START + 4000
    assert points[-1][0] - points[0][0] > 3900


def test_a_node_that_nobody_knows():
    assert Feed(Run(["w1"]).view).node("w2") is None


def test_shares_of_the_time_add_up():
    run = Run(["w1"])
    for second in range(1, 10):
        run.go_on(1, train_s=0.7 * second, wait_s=0.2 * second, merge_s=0.1 * second, publish_s=0.0)
    budget = Feed(run.view).node("w1")["budget"]
    assert [round(sum(share), 6) for _, *share in budget] == [1.0] * 8


def test_hours_without_a_reader_are_thinned_for_the_next_one():
    run = Run(["w1"])
    run.go_on(30)
    feed = Feed(run.view)
    streams = Streams(feed)

    async def first_of_a_reader():
        async with aclosing(streams.open_stream("here")) as told:
            return json.loads((await anext(told)).partition("data: ")[2])["points"]["w1"]

    asyncio.run(first_of_a_reader())
    run.go_on(3000)
    points = asyncio.run(first_of_a_reader())
    assert points[-1][0] == START + 3030
    assert len(points) <= 400
    assert feed.update()["points"] == {}  # nothing is left for it
