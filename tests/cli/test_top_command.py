"""`dpwa top`, as users run it: against nodes that train, are killed, or answer nonsense."""

import json
import math
import shlex
import signal
import subprocess
import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from rich.cells import cell_len
from support.commands import run_dpwa
from support.imposters import imposter
from support.launched import DPWA, interruptible
from support.nodes import config_of, eventually
from support.ports import free_ports
from support.processes import ended, start
from support.terminals import ESCAPE, on_terminal
from support.times import at_most

from dpwa import DpwaConnection
from dpwa.cli.top import press
from dpwa.cli.top_page import SORTS, Shown, ViewChoices, printed, screen_of
from dpwa.errors import without_codes
from dpwa.observe.events import RunEvent
from dpwa.observe.figures import NAMES
from dpwa.observe.rates import Rates
from dpwa.observe.rows import NodeRow
from dpwa.observe.run_view import RunView
from dpwa.wire.messages import encode, pack
from dpwa.wire.watching import HistoryMessage


@pytest.fixture
def config():
    return config_of(3, timeout_ms=300)


@pytest.fixture
def file(config, tmp_path):
    path = tmp_path / "nodes.yaml"
    path.write_text(json.dumps(config))
    return path


@pytest.fixture
def run(config, file):
    """The file of a run: w1 and w2 have merged, and w3 was never there."""
    config = {**config, "transport": "tcp"}
    with DpwaConnection("w1", config) as one, DpwaConnection("w2", config) as two:

        def is_merged():
            for each in (one, two):
                each.update_send(np.ones(100), 0.25)
                each.update_wait(0.25)
            return one.node.report()["merges"] and two.node.report()["merges"]

        eventually(is_merged)
        yield file


def top(file, *options, environment=None):
    return run_dpwa("top", "-c", file, *options, environment=environment)


def refuse(constant):
    raise AssertionError(f"{constant} is no JSON")


def told(result):
    return json.loads(result.stdout, parse_constant=refuse)


def history(**changed):
    """What a node with two samples answers."""
    rows = [[1e9 + second, *[0.0] * len(NAMES)] for second in (1, 2)]
    answer = {
        "schema": 1, "name": "w1", "endpoint": "tcp://127.0.0.1:1", "host": "h", "pid": 7,
        "algorithm": "gossip", "topology": "random", "group": "", "started": 1e9, "now": 1e9 + 2,
        "last": 1e9 + 2, "figures": NAMES, "samples": np.array(rows, "<f8").tobytes(),
        "events": [], "peers": [], "members": [],
    }  # fmt: skip
    return [encode(HistoryMessage(request=1)), pack({**answer, **changed})]


def test_json_has_all_that_is_known(run):
    before = time.time()
    result = top(run, "--once", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    view = told(result)
    assert set(view) == {"time", "through", "nodes", "events"}
    assert before <= view["time"] <= time.time()
    rows = {row["name"]: row for row in view["nodes"]}
    assert list(rows) == ["w1", "w2", "w3"]
    fields = set(NodeRow.__dataclass_fields__) | {"endpoint"}
    assert all(set(row) == fields for row in rows.values())
    assert all(set(row["rates"]) == set(Rates.__dataclass_fields__) for row in rows.values())
    assert view["through"] in ("w1", "w2")
    assert [rows[name]["state"] for name in ("w1", "w2")] == ["live", "live"]
    assert rows["w3"]["problem"].startswith("nothing answers at tcp://127.0.0.1:")
    for event in view["events"]:
        assert set(event) == {"time", "node", "kind", "about", "text", "number"}


@pytest.mark.parametrize("loss", [math.inf, math.nan])
def test_json_has_no_nan_and_no_infinity(loss):
    row = [1e9 + 1, *[math.nan] * len(NAMES)]
    row[1 + NAMES.index("loss")] = loss
    answer = history(samples=np.array([row], "<f8").tobytes(), last=1e9 + 1)
    (port,) = free_ports(1)
    with imposter(port, lambda frames: [answer]):
        result = run_dpwa("top", "--at", f"127.0.0.1:{port}", "--once", "--json")
        page = run_dpwa("top", "--at", f"127.0.0.1:{port}", "--once")
    (row,) = told(result)["nodes"]
    assert (row["loss"], row["losses"], row["clock"]) == (None, [None], None)
    assert [v["kind"] for v in row["verdicts"]] == ["diverged"] * math.isinf(loss)
    line = next(line for line in page.stdout.splitlines() if line[2:4] == "w1")
    assert ("inf" in line) == math.isinf(loss)


@pytest.mark.parametrize("columns", [40, 80, 20, 200])
def test_no_line_is_longer_than_the_terminal_is_wide(run, columns):
    result = top(run, "--once", environment={"COLUMNS": str(columns)})
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert max(map(cell_len, lines)) <= columns
    assert lines[0].startswith("dpwa top")
    assert [line[2:4] for line in lines[2:5]] == ["w1", "w2", "w3"]
    shown = lines[1].split()
    assert ("score" in shown, "loss" in shown) == (columns > 80, columns > 20)


@pytest.mark.parametrize("environment", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_without_a_terminal_there_are_no_colours(run, environment):
    assert "\x1b" not in top(run, "--once", environment=environment).stdout


def test_hostile_text_is_shown_as_text():
    text = (
        "\x1b[2J\x1b]0;title\x07 [red]bold[/red] :smile: \u202e\r\n"
        + "\N{CJK RADICAL EAT ONE}" * 60
    )
    answer = history(
        host=text, algorithm=text, events=[[1, 1e9 + 1, text, text, text, text]],
        members=[["w2", text, "alive"]],
    )  # fmt: skip
    (port,) = free_ports(1)
    with imposter(port, lambda frames: [answer]):
        command = "top", "--at", f"127.0.0.1:{port}", "--once"
        result = run_dpwa(*command, environment={"COLUMNS": "60"})
    assert result.exit_code == 0
    lines = result.stdout.split("\n")
    assert all(line.isprintable() for line in lines)
    assert max(map(cell_len, lines)) <= 60
    assert "[red]bold[/red]" in result.stdout
    assert ":smile:" in result.stdout


def test_an_address_where_nobody_answers_ends_with_one_clear_message():
    (port,) = free_ports(1)
    result = run_dpwa("top", "--at", f"127.0.0.1:{port}", "--once")
    assert (result.exit_code, result.stdout) == (3, "")
    where = f"tcp://127.0.0.1:{port}"
    assert without_codes(result.stderr) == (
        f"dpwa: no node answers. The command asked {where} (nothing answers at {where})\n"
    )
    result = run_dpwa("top", "--at", f"127.0.0.1:{port}", "--once", "--json")
    assert result.exit_code == 3
    assert told(result)["through"] == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--sort", "speed"), "--sort: expected one of name, state, loss, "),
        (("--interval", "nan"), "Invalid value for '--interval': "),
        (("--at", "nowhere"), "--at: expected host:port, or NAME@host:port (got nowhere)"),
    ],
)
def test_an_option_that_is_wrong(file, options, message):
    result = run_dpwa("top", "-c", file, "--once", *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


@pytest.mark.parametrize("key", SORTS)
def test_nodes_are_sorted_by_any_column(run, key):
    assert top(run, "--once", "--sort", key).exit_code == 0


def test_what_keys_do():
    look = ViewChoices()
    for key, page in [("?", "keys"), ("v", "matters"), ("e", "events"), ("e", "nodes")]:
        press(look, key)
        assert look.page == page
    for key in ("s", "s"):
        press(look, key)
    assert (look.sort, look.is_reversed) == ("steps", True)
    press(look, "r")
    assert not look.is_reversed
    look.visible = 5
    firsts = []
    for key in ("down", "page down", "up", "page up", "up", "end", "home", "x"):
        press(look, key)
        firsts.append(look.first)
    assert firsts == [1, 6, 5, 0, 0, 1_000_000, 0, 0]
    assert len(set(SORTS.values()) | set("q?hver jkb")) == len(SORTS) + len("q?hver jkb")


def test_the_first_line_has_the_command_of_a_run_that_was_found_where_there_is_room():
    shown = Shown(RunView(0.0, "w1", (), ()), ())
    heads = [
        screen_of(shown, ViewChoices(command="python x.py"), width, 24)[0].plain
        for width in (80, 30)
    ]
    assert heads[0].endswith("reported by w1  python x.py")
    assert "python" not in heads[1]


def test_all_keys_and_signs_fit_a_terminal_of_24_lines():
    shown = Shown(RunView(0.0, "", (), ()), ())
    lines = [line.plain for line in screen_of(shown, ViewChoices(page="keys"), 80, 24)]
    assert len(lines) == 24
    for key in ("q", "v", "e", "r", *SORTS.values(), "X", "!", "?"):
        assert any(line.startswith(f"{key}  ") for line in lines), key


def test_who_finishes_and_for_whom_it_waits_stands_below_the_table_and_checkpoints_elsewhere():
    named = {"name": "w1", "through": "", "loss": 0.5, "clock": 9.0, "consensus_distance": None}
    named |= {"score": None, "rates": Rates(), "verdicts": (), "losses": ()}
    row = NodeRow(**named, state="finishing", waits_for=("w2", "w3"))
    events = [RunEvent(float(n), "w1", "checkpoint", "w1") for n in range(20)]
    rows = [row, replace(row, name="w4"), replace(row, name="w5", waits_for=("w2",))]
    shown = Shown(RunView(0.0, "w1", (), ()), rows, [RunEvent(0.0, "", "left", "w9"), *events])
    look = ViewChoices()
    screens = (
        screen_of(shown, look, 80, 24),
        printed(shown, look, 80),
        screen_of(shown, look, 44, 20),
    )
    for screen in screens:
        lines = [line.plain for line in screen]
        assert lines[0].startswith("dpwa top  3 nodes, 3 finishing")
        assert "  finishing: w1, w4 (waiting for w2, w3)" in lines
        assert "  finishing: w5 (waiting for w2)" in lines
        assert any("left" in line for line in lines)
        assert not any("checkpoint" in line for line in lines)
    page = screen_of(shown, ViewChoices(page="events"), 80, 40)
    assert sum("checkpoint" in line.plain for line in page) == 20


# In a process of its own


@pytest.mark.parametrize(("key", "columns"), [(b"q", 80), (b"\x03", 40)])
def test_a_terminal_is_as_before_when_it_ends(run, key, columns):
    command = shlex.join([*DPWA, "top", "-c", str(run)])
    script = f"trap : INT; stty -g; {command}; code=$?; stty -g; exit $code"
    shown, code = on_terminal(["sh", "-c", script], until="w2 ", key=key, columns=columns)
    assert code == 0
    before, *_, after = shown.split()
    assert before == ESCAPE.sub("", after)
    assert shown.index("\x1b[?1049h") < shown.rindex("\x1b[?1049l")  # the other screen, and back
    assert shown.index("\x1b[?25l") < shown.rindex("\x1b[?25h")  # the cursor, likewise
    assert "Traceback" not in shown


@pytest.mark.slow
def test_without_a_terminal_one_view_follows_the_other_until_ctrl_c(run):
    command = [*DPWA, "top", "-c", str(run), "--interval", "0.2"]
    with interruptible(), subprocess.Popen([*command, "--json"], stdout=-1, text=True) as process:
        views = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
    assert all(after["time"] - before["time"] > 0.1 for before, after in pairwise(views))
    events = [json.dumps(event) for view in views for event in view["events"]]
    assert len(events) == len(set(events))
    with interruptible(), subprocess.Popen(command, stdout=-1, text=True) as process:
        while process.stdout.readline() != "\n":
            pass
        assert process.stdout.readline().startswith("dpwa top")
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0


@pytest.mark.slow
def test_of_eight_processes_the_slow_one_and_the_killed_one_are_named_within_ten_seconds(tmp_path):
    path = tmp_path / "nodes.yaml"
    path.write_text(json.dumps(config_of(8, timeout_ms=500)))
    seconds = {f"w{n}": 0.5 if n == 3 else 0.1 for n in range(1, 9)}
    nodes = {n: start("train.py", path, n, s) for n, s in seconds.items()}
    with ended(*nodes.values()):
        assert all(node.stdout.readline() for node in nodes.values())
        time.sleep(5)
        nodes["w5"].kill()
        killed = time.monotonic()

        def is_named():
            view = told(top(path, "--once", "--json"))
            found = {row["name"]: row["verdicts"] for row in view["nodes"] if row["verdicts"]}
            kinds = {name: [v["kind"] for v in verdicts] for name, verdicts in found.items()}
            return kinds == {"w3": ["slow"], "w5": ["gone"]} and found

        found = eventually(is_named, 10.0)
        assert time.monotonic() - killed < at_most(10.0)
        assert " x slower" in found["w3"][0]["text"]
        assert found["w3"][0]["text"].startswith("takes ")
        assert "cannot be reached: nothing answers at tcp://" in found["w5"][0]["text"]
        assert "cannot reach this node" in found["w5"][0]["text"]
        page = top(path, "--once", environment={"COLUMNS": "80"}).stdout
        assert "8 nodes, 1 slow, 1 gone" in page
