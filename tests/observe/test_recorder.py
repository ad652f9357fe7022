"""A node tells what it has recorded to whoever asks, and writes it down."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from copy import deepcopy

import numpy as np
import pytest
from support.nodes import config_of, eventually
from support.strangers import question_and_payload
from support.times import HANGS_AFTER_S, SetClock
from support.told_reports import ToldReport, answer_of

from dpwa import DpwaConnection
from dpwa.config import load_config
from dpwa.errors import UserError
from dpwa.observe.figures import INDEX, NAMES
from dpwa.observe.recorder import NodeRecord
from dpwa.policy import interpolation as registry
from dpwa.transport.link import LinkState
from dpwa.types import StrictModel
from dpwa.wire.messages import AskStatus, unpack
from dpwa.wire.watching import AskHistory


def train(connection, steps):
    for _ in range(steps):
        connection.update_send(np.zeros(1000), 0.5)
        connection.update_wait()


def lines_of(folder):
    paths = list(folder.iterdir())
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def asked(connection, **fields):
    message = AskHistory(**{"request": 1, "since": 0.0, "events_after": 0, "of": "", **fields})
    return unpack(question_and_payload(connection.node.endpoint, message, None)[1])


def test_a_node_tells_its_figures_its_events_and_what_it_knows_of_others():
    config = config_of(2, transport="tcp")
    with DpwaConnection("w1", config) as one, DpwaConnection("w2", config) as two:
        deadline, answer = time.monotonic() + 20, {"events": []}
        while not answer["events"] and time.monotonic() < deadline:
            train(two, 1)
            train(one, 1)
            answer = asked(one)
        samples = np.frombuffer(answer["samples"], "<f8").reshape(-1, 1 + len(NAMES))
        assert answer["name"] == "w1"
        assert tuple(answer["figures"]) == NAMES
        assert samples[-1, 1 + INDEX["steps"]] >= 1
        assert samples[-1, 1 + INDEX["merged_bytes"]] >= 8000
        number, _, node, kind, about, _ = answer["events"][0]
        assert (number, node, kind, about) == (1, "w1", "joined", "w2")
        assert asked(one, since=answer["last"], events_after=1)["samples"] == b""
        told = asked(one, of="w2")
        clock, version, loss, _ = np.frombuffer(told["samples"], "<f8").reshape(-1, 5)[-1, 1:]
        assert clock >= 1
        assert version >= 1
        assert loss == 0.5
        assert asked(one, of="nobody")["samples"] == b""


def test_who_is_there_at_the_first_look_has_joined():
    config = config_of(2, transport="tcp")
    with DpwaConnection("w1", config) as one, DpwaConnection("w2", config):
        eventually(lambda: one.node.links["w2"] is LinkState.UP)
        eventually(lambda: one.node.condition().peers[0].health == "alive" or train(one, 1))
        record = NodeRecord(one.node.condition, time.time)
        (event,) = answer_of(record)["events"]
        assert event[2:5] == ["w1", "joined", "w2"]


def test_a_node_in_finish_tells_so_and_whom_it_waits_for_and_trains_on_if_it_does():
    config = config_of(2)
    with DpwaConnection("w1", config) as one, DpwaConnection("w2", config) as two:
        train(two, 1)
        train(one, 1)
        assert asked(one)["ending"] is None
        ends = threading.Thread(target=one.finish, args=(np.zeros(1000),))
        ends.start()
        eventually(lambda: asked(one)["ending"] == [False, ["w2"]])
        two.finish(np.zeros(1000))
        ends.join(HANGS_AFTER_S)
        eventually(lambda: asked(one)["ending"] == [True, []])
        train(one, 1)
        eventually(lambda: asked(one)["ending"] is None)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError, None])
def test_a_run_log_says_by_what_the_run_was_broken_off(tmp_path, error):
    with suppress(BaseException), DpwaConnection("w1", config_of(1, run_log=str(tmp_path))) as one:
        train(one, 1)
        if error is not None:
            raise error
    problem = lines_of(tmp_path)[-1]["problem"]
    assert problem == ("" if error is None else f"broken off by {error.__name__}")


def test_a_run_log_says_that_a_node_has_finished_with_nobody_and_not_how_its_program_went_on(
    tmp_path,
):
    config = config_of(2, run_log=str(tmp_path))
    with suppress(SystemExit), DpwaConnection("w1", config) as one:
        _, report = one.finish(np.zeros(4), timeout_s=0.0)
        sys.exit(0)
    assert lines_of(tmp_path)[-1]["problem"] == report.problem
    assert report.problem.startswith("finished together with no other node. Missing peers: w2 (")


def test_what_onlookers_are_told_is_no_traffic_of_the_training():
    with DpwaConnection("w1", config_of(1)) as connection:
        train(connection, 1)
        for _ in range(3):
            asked(connection)
            question_and_payload(connection.node.endpoint, AskStatus(request=1), None)
        assert connection.node.report()["bytes_sent"] == 0


def test_a_run_log_begins_with_the_node_and_ends_with_its_last_figures(tmp_path):
    with DpwaConnection("w1", config_of(1, run_log=str(tmp_path / "new" / "run"))) as connection:
        train(connection, 7)
    lines = lines_of(tmp_path / "new" / "run")
    assert lines[0]["type"] == "start"
    assert lines[0]["run_log"] == 1
    assert lines[0]["name"] == "w1"
    assert [line["type"] for line in lines[-2:]] == ["peers", "end"]
    samples = [line for line in lines if line["type"] == "sample"]
    assert samples[-1]["steps"] == 7
    assert samples[-1]["loss"] == 0.5


def test_a_run_log_has_the_settings_of_the_run_and_no_addresses_or_keys(tmp_path):
    config = config_of(2, run_log=str(tmp_path), fetch_probability=0.25, algorithm="symmetric")
    with DpwaConnection("w1", config):
        pass
    start = lines_of(tmp_path)[0]
    assert (start["listed"], start["membership"]) == (2, "listed")
    settings = start["settings"]
    assert (settings["algorithm"], settings["fetch_probability"]) == ("symmetric", 0.25)
    assert not {"nodes", "join", "keys", "allow", "run_log", "metrics"} & settings.keys()
    assert str(tmp_path) not in json.dumps(start)


class PluginOptions(StrictModel):
    token: str = "none"


def test_a_run_log_tells_no_files_and_nothing_of_what_plugins_are_set_to(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_REGISTRY", deepcopy(registry._REGISTRY))
    registry.register_interpolation("of_a_plugin", PluginOptions)(lambda options, own, peer: 0.5)
    graph = tmp_path / "edges.txt"
    graph.write_text("w1 w2\n")
    config = load_config(
        config_of(2, run_log=str(tmp_path / "run"), interpolation="of_a_plugin", topology="file")
        | {"of_a_plugin": {"token": "secret"}, "file": {"path": str(graph)}}
    )
    with DpwaConnection("w1", config):
        pass
    (start, *_) = lines_of(tmp_path / "run")
    settings = start["settings"]
    assert (settings["interpolation"], settings["topology"]) == ("of_a_plugin", "file")
    assert not {"of_a_plugin", "file"} & settings.keys()
    assert str(tmp_path) not in json.dumps(start)
    assert "secret" not in json.dumps(start)


def test_without_a_run_log_nothing_is_made_for_it(monkeypatch):
    monkeypatch.setattr("dpwa.observe.run_log.settings_told", pytest.fail)
    with DpwaConnection("w1", config_of(1)):
        pass


def test_figures_tell_that_steps_differ_and_what_fetches_took():
    config = config_of(2, transport="tcp")
    with DpwaConnection("w1", config) as one, DpwaConnection("w2", config) as two:
        deadline, merges, steps = time.monotonic() + 20, 0, 0
        while merges < 3 and time.monotonic() < deadline:
            train(two, 1)
            one.update_send(np.zeros(1000), 0.5)
            steps += 1
            time.sleep(0.1 * (steps % 2))
            merges += one.update_wait()[1] > 0
        one.update_send(np.zeros(1000), 0.5)  # which ends the step before
        gossip = one.node.report()["gossip"]
    assert 0.0 < gossip["step_changes_s2"] < gossip["train_s"] ** 2
    assert gossip["fetches"] >= 3
    assert gossip["answer_s"] > 0
    assert gossip["streams"] >= 3
    assert gossip["stream_s"] > 0


def test_a_process_that_is_killed_leaves_whole_lines(tmp_path):
    program = (
        "import numpy as np, sys, time\n"
        "from dpwa import DpwaConnection\n"
        f"c = DpwaConnection('w1', {config_of(1, run_log=str(tmp_path))!r})\n"
        "c.update_send(np.zeros(10), 1.0)\n"
        "time.sleep(1.2)\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        os.kill(process.pid, signal.SIGKILL)
    lines = lines_of(tmp_path)
    assert lines[0]["type"] == "start"
    assert [line["steps"] for line in lines if line["type"] == "sample"][-1] == 1


@pytest.mark.parametrize(
    ("peers", "seconds"), [(3, [0, 1, 2, 3, 4, 5, 6]), (1024, [0, 2, 4, 6]), (9000, [0, 3, 6])]
)
def test_the_more_peers_a_node_has_the_fewer_samples_it_takes(peers, seconds):
    clock, taken = SetClock(), []
    report = ToldReport(**dict.fromkeys((f"w{n}" for n in range(peers)), "alive"))
    record = NodeRecord(lambda: taken.append(clock.time) or report(), clock.now)
    began = clock.time
    for second in range(7):
        clock.time = began + second
        record.tick(clock.time)
    assert [time - began for time in taken] == seconds


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="run_log: expected a folder that can be written to"):
        DpwaConnection("w1", config_of(1, run_log=str(tmp_path / "file" / "run")))


def test_a_full_disk_is_told_and_the_training_goes_on(tmp_path, monkeypatch, caplog):
    def full(*_):
        raise OSError(28, "No space left on device")

    with DpwaConnection("w1", config_of(1, run_log=str(tmp_path))) as connection:
        monkeypatch.setattr("dpwa.observe.run_log.os.write", full)
        deadline, kinds = time.monotonic() + 20, []
        while "log_failed" not in kinds and time.monotonic() < deadline:
            train(connection, 1)
            time.sleep(0.1)
            kinds = [event[3] for event in asked(connection)["events"]]
        problem = connection.node.report()["run_log"]["problem"]
        monkeypatch.undo()
        assert "log_failed" in kinds
    assert problem == "the run log cannot be written (No space left on device)"
    assert [r.getMessage() for r in caplog.records if "W101" in r.getMessage()] == [
        f"w1: {problem} [DPWA-W101]"
    ]
