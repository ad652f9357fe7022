"""Run directories are read as they are: torn, empty, restarted, of several runs, or of no use."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from support.nodes import config_of
from support.run_logs import BEGAN, lines_of_log, peers_line, write_log

from dpwa.config import Config
from dpwa.errors import UserError
from dpwa.observe.run_log import cluster_id, run_id
from dpwa.observe.run_log_reader import read_run


def torn(path, count):
    """Cut off the last bytes of a file."""
    path.write_bytes(path.read_bytes()[:-count])


def problem(folder, **options):
    with pytest.raises(UserError) as raised:
        read_run(folder, **options)
    return raised.value.text


def test_a_node_has_its_figures_events_and_peers(tmp_path):
    write_log(tmp_path, "w2", seconds=5, events=[(2, "joined", "w10")], peers={"w10": 7})
    write_log(tmp_path, "w10", seconds=9, speed=2.0)
    run = read_run(tmp_path)
    assert list(run.nodes) == ["w2", "w10"]
    node = run.nodes["w2"]
    assert node.figure("steps").tolist() == [5, 10, 15, 20, 25]
    assert node.total("steps") == 25
    assert node.best.steps == 25
    assert node.ended
    assert not node.is_thinned
    assert [(e.node, e.kind, e.about, e.time) for e in node.events] == [
        ("w2", "joined", "w10", BEGAN + 2)
    ]
    assert node.exchanged["w10"].merges == 7
    assert node.staleness.counts == (3, 2, 1, 0)
    assert (run.began, run.last, run.remarks) == (BEGAN, BEGAN + 9, ())


@pytest.mark.parametrize("cut", [1, 10, 60])
def test_a_torn_last_line_is_passed_over(tmp_path, cut):
    path = write_log(tmp_path, "w1", seconds=5, ends=False, peers={"w2": 3})
    with path.open("a") as file:
        file.write('{"type":"sample","time":1790000006.0,"steps":30,"merges":30,"train_s":4.2}\n')
    torn(path, cut)
    run = read_run(tmp_path)
    node = run.nodes["w1"]
    assert node.figure("steps")[:5].tolist() == [5, 10, 15, 20, 25]
    assert not node.ended
    assert node.exchanged["w2"].merges == 3
    assert len(run.remarks) == (cut > 1)  # without its line feed only, a line is whole


def test_damage_in_the_middle_costs_only_what_is_damaged(tmp_path):
    path = write_log(tmp_path, "w1", seconds=5)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2][:40]  # runs into the next line
    lines.insert(5, b"\x00\xff garbage\n" + b"[" * 5000 + b"\n" + b'{"type":"sample"}\n')
    lines.insert(6, b'{"type":"sample","time":1e300}\n{"type":"news","time":1.0}\n')
    path.write_bytes(b"".join(lines))
    run = read_run(tmp_path)
    assert run.nodes["w1"].figure("steps").tolist() == [5, 20, 25]
    assert run.remarks == (f"5 damaged lines were skipped in {path.name}",)


def test_the_last_whole_line_of_peers_counts(tmp_path):
    path = write_log(tmp_path, "w1", seconds=3, ends=False, peers={"w2": 3})
    text = json.dumps(peers_line(BEGAN + 4, {"w2": 5}), separators=(",", ":"))
    with path.open("a") as file:
        file.write(text[:50] + text + "\n")
    assert read_run(tmp_path).nodes["w1"].exchanged["w2"].merges == 3


def test_figures_that_are_no_numbers_are_unknown(tmp_path):
    write_log(tmp_path, "w1", seconds=2, loss="inf", wait_s=None, clock="x", skipped=True)
    node = read_run(tmp_path).nodes["w1"]
    assert np.isinf(node.figure("loss")).all()
    assert all(np.isnan(node.figure(name)).all() for name in ("wait_s", "clock", "skipped"))
    assert node.best is None
    assert node.total("wait_s") == 0


def test_counters_go_on_after_a_restart(tmp_path):
    write_log(tmp_path, "w1", seconds=4, ends=False, peers={"w2": 10})
    write_log(tmp_path, "w1", seconds=3, began=BEGAN + 10, pid=101, peers={"w2": 5})
    node = read_run(tmp_path).nodes["w1"]
    assert node.figure("steps").tolist() == [5, 10, 15, 20, 25, 30, 35]
    assert node.process.tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert [process.ended for process in node.processes] == [False, True]
    assert node.exchanged["w2"].merges == 15
    assert sum(node.staleness.counts) == 12


def test_the_newest_of_several_runs_is_read_and_the_others_are_named(tmp_path):
    write_log(tmp_path, "w1", seconds=5)
    write_log(tmp_path, "w2", seconds=8)
    write_log(tmp_path, "w1", seconds=4, began=BEGAN + 30, pid=101)
    newest, oldest = read_run(tmp_path), read_run(tmp_path, 1)
    assert list(newest.nodes) == ["w1"]
    assert [(s.number, s.nodes) for s in newest.spans] == [(1, 2), (2, 1)]
    assert (newest.number, oldest.number) == (2, 1)
    assert list(oldest.nodes) == ["w1", "w2"]
    assert (
        problem(tmp_path, number=3)
        == f"--run: expected a number from 1 to 2, the runs in {tmp_path} (got 3)"
    )


def test_a_node_that_is_started_again_soon_after_it_was_killed_is_of_the_same_run(tmp_path):
    write_log(tmp_path, "w1", seconds=5, ends=False)
    write_log(tmp_path, "w1", seconds=5, began=BEGAN + 40, pid=101)
    assert len(read_run(tmp_path).spans) == 1


def test_a_run_has_an_id_whatever_the_clocks_of_its_hosts(tmp_path):
    """The clock of one host is an hour ahead; another run has begun ten seconds after this."""
    write_log(tmp_path, "w1", seconds=5, run="one")
    write_log(tmp_path, "w2", seconds=5, run="one", began=BEGAN + 3600, ends=False)
    write_log(tmp_path, "w2", seconds=5, run="one", began=BEGAN + 20, pid=101)  # set right
    write_log(tmp_path, "w1", seconds=5, run="two", began=BEGAN + 16, pid=102)
    write_log(tmp_path, "w3", seconds=5, began=BEGAN + 17)  # by hand
    found = read_run(tmp_path)
    assert [(span.number, span.nodes) for span in found.spans] == [(1, 2), (2, 2)]
    assert list(found.nodes) == ["w1", "w3"]
    assert len(read_run(tmp_path, 1).nodes["w2"].processes) == 2


def test_runs_of_two_lists_of_nodes_are_two_runs_though_they_go_on_at_once(tmp_path):
    clusters = [cluster_id(Config.model_validate(config_of(count))) for count in (1, 2)]
    write_log(tmp_path, "w1", seconds=9, cluster=clusters[0])
    write_log(tmp_path, "w1", seconds=9, cluster=clusters[1], began=BEGAN + 1, pid=101)
    write_log(tmp_path, "w1", seconds=9, cluster=clusters[0], began=BEGAN + 12, pid=102)
    write_log(tmp_path, "w2", seconds=9, cluster=clusters[1], began=BEGAN + 13, pid=103)
    found = read_run(tmp_path)
    assert [(span.number, span.nodes) for span in found.spans] == [(1, 1), (2, 2)]
    assert len(read_run(tmp_path, 1).nodes["w1"].processes) == 2


@pytest.mark.parametrize(
    ("environ", "run"),
    [
        ({"DPWA_RUN_ID": "mine", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}, "mine"),
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}, "slurm-7.0"),
        ({"SLURM_JOB_ID": "7"}, ""),
        ({"SKYPILOT_TASK_ID": "sky-1"}, "sky-1"),
        (
            {"TORCHELASTIC_RUN_ID": "d2b1a86e-0e5f-4a3c-9a55-0123456789ab"},
            "d2b1a86e-0e5f-4a3c-9a55-0123456789ab",
        ),
        ({"TORCHELASTIC_RUN_ID": "none"}, ""),
        ({}, ""),
    ],
)
def test_the_id_is_that_of_whoever_has_started_the_run(environ, run):
    assert run_id(environ) == run


def test_long_logs_are_thinned_and_what_is_counted_stays_exact(tmp_path):
    events = [(second, "skipped", "w1") for second in range(1, 2000)]
    path = write_log(tmp_path, "w1", seconds=3000, events=events)
    text = path.read_text()
    low = json.dumps({"type": "sample", "time": BEGAN + 1500.5, "loss": 0.01, "steps": 7501})
    path.write_text(text.replace('{"type":"event"', low + '\n{"type":"event"', 1))
    node = read_run(tmp_path, most_samples=100).nodes["w1"]
    assert 50 <= len(node.rows) <= 100
    assert (np.diff(node.times) > 0).all()
    assert node.times[[0, -1]].tolist() == [BEGAN + 1, BEGAN + 3000]
    assert node.total("steps") == 15_000
    assert node.sample_count == 3001
    assert node.best.loss == 0.01
    assert node.event_counts["skipped"] == 1999
    assert 200 <= len(node.events) <= 400
    assert np.diff(node.times).max() < 3 * np.diff(node.times).min()


def test_what_is_no_run_directory_is_one_clear_error(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    assert "expected run logs, but found none. Nodes write" in problem(tmp_path / "empty")
    assert "it does not exist" in problem(tmp_path / "nowhere")
    assert "it is a file" in problem(tmp_path / "file")


def test_files_that_are_no_run_logs_are_named_and_passed_over(tmp_path):
    (tmp_path / "notes.jsonl").write_text('{"a": 1}\n')
    (tmp_path / "list.jsonl").write_text("[1]\n")
    (tmp_path / "numbers.jsonl").write_text("1\n")
    (tmp_path / "nodes.yaml").write_text("nodes: []\n")
    (tmp_path / "folder.jsonl").mkdir()
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert problem(tmp_path).endswith(
        "list.jsonl is not a run log. notes.jsonl is not a run log. numbers.jsonl is not a run log"
    )
    write_log(tmp_path, "w1")
    assert len(read_run(tmp_path).remarks) == 3


def test_a_log_without_its_first_line_is_known_by_the_name_of_its_file(tmp_path):
    path = write_log(tmp_path, "a-b", seconds=3)
    path.write_text(path.read_text()[30:])
    (tmp_path / "w3-20260921T141322-7.jsonl").write_text("")
    run = read_run(tmp_path)
    assert list(run.nodes) == ["a-b", "w3"]
    assert run.nodes["a-b"].total("steps") == 15
    assert len(run.nodes["w3"].rows) == 0


def test_a_newer_version_is_refused_and_an_older_dpwa_says_what_it_reads(tmp_path):
    path = write_log(tmp_path, "w1", version=2)
    assert problem(tmp_path).startswith(f"{path}: expected a run log of version 1 (got 2)")


def test_names_from_files_are_made_harmless(tmp_path):
    write_log(tmp_path, "\x1b[31m\u202eevil" + "x" * 1000, file_name="w1", seconds=2)
    (name,) = read_run(tmp_path).nodes
    assert name == "?[31m?evil" + "x" * 54


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    write_log(tmp_path, "w1")
    path = write_log(tmp_path, "w2")
    path.chmod(0)
    tmp_path.chmod(0o755)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    assert read_run(tmp_path).remarks == (f"{path.name} cannot be read (Permission denied)",)


def test_reading_is_heard_of(tmp_path):
    write_log(tmp_path, "w1")
    told = []
    run = read_run(tmp_path, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (run.nbytes, run.nbytes)


LIMITED = """
import resource, sys
from dpwa.observe.run_log_reader import read_run
import numpy
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + (48 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
run = read_run(sys.argv[1])
node = run.nodes["w3"]
print(run.nbytes, node.sample_count, len(node.rows), node.total("steps"))
"""


@pytest.mark.slow
def test_any_amount_of_logs_is_read_in_bounded_memory(tmp_path):
    names, seconds = [f"w{n}" for n in range(1, 9)], 40_000
    peers = dict.fromkeys([f"w{n}" for n in range(200)], 1)
    for name in names:
        path = write_log(tmp_path, name, seconds=1)
        with path.open("a") as file:
            for line in lines_of_log(name, seconds=seconds, ends=False):
                file.write(json.dumps(line) + "\n")
                if line["type"] == "sample" and line["steps"] % 500 == 0:
                    file.write(json.dumps(peers_line(line["time"], peers)) + "\n")
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path)], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    nbytes, samples, rows, steps = done.stdout.split()
    assert int(nbytes) > 3 * (48 << 20)
    assert int(samples) == seconds + 1
    assert 2000 <= int(rows) <= 4000
    assert float(steps) == 5 * seconds
