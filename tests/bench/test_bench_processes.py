"""The processes of a benchmark: started with one thread, heard, and never left behind."""

import json
import sys

import pytest
from support.launched import assert_gone, interruptible

from dpwa.bench.plan import BenchPlan
from dpwa.bench.processes import BenchmarkError, run_processes

PLAN = BenchPlan(nbytes=4, hosts=("127.0.0.1", "127.0.0.1"), ports={})


def run(code):
    """Run Python code in two processes; return what they wrote, by rank."""
    lines = {0: [], 1: []}
    run_processes([sys.executable, "-c", code], PLAN, lambda rank, line: lines[rank].append(line))
    return lines


def test_each_process_has_a_rank_and_one_thread():
    code = "import os; print(os.environ['DPWA_RANK'], os.environ['OMP_NUM_THREADS'])"
    assert run(code) == {0: ["0 1"], 1: ["1 1"]}


def test_what_a_process_writes_to_standard_error_is_shown_with_its_name(capfd):
    run("import os, sys; sys.stderr.write('oh' * int(os.environ['DPWA_RANK']))")
    assert "w2: oh\n" in capfd.readouterr().err


def test_one_that_fails_stops_the_others_and_is_named(tmp_path):
    code = (
        "import os, pathlib, sys, time\n"
        "rank = int(os.environ['DPWA_RANK'])\n"
        f"mine = pathlib.Path({str(tmp_path)!r}, str(rank))\n"
        "mine.with_suffix('.new').write_text(str(os.getpid()))\n"
        "mine.with_suffix('.new').rename(mine)\n"
        "while not mine.with_name('0').exists(): time.sleep(0.01)\n"
        "sys.exit(3) if rank == 1 else time.sleep(60)"
    )
    with pytest.raises(BenchmarkError, match=r"process w2 failed \(exit code 3\)"):
        run(code)
    assert_gone(int((tmp_path / "0").read_text()))


def test_an_interrupt_stops_all(tmp_path):
    code = (
        "import os, pathlib, signal, time\n"
        f"mine = pathlib.Path({str(tmp_path)!r}, os.environ['DPWA_RANK'])\n"
        "mine.with_suffix('.new').write_text(str(os.getpid()))\n"
        "mine.with_suffix('.new').rename(mine)\n"
        "while not mine.with_name('1').exists(): time.sleep(0.01)\n"
        "if mine.name == '0': os.kill(os.getppid(), signal.SIGINT)\n"
        "time.sleep(60)"
    )
    with interruptible(), pytest.raises(KeyboardInterrupt):
        run(code)
    assert_gone(*(int((tmp_path / rank).read_text()) for rank in "01"))


@pytest.mark.slow
def test_measures_take_turns_in_being_first():
    code = (
        "import json\n"
        "from dpwa.bench.plan import Rank\n"
        "from dpwa.bench.session import GlooGroup, repeat\n"
        "order = []\n"
        "class Named:\n"
        "    def __init__(self, name): self.name = name\n"
        "    def prepare(self): order.append(self.name)\n"
        "    def run(self): return {self.name: 1.0}\n"
        "with GlooGroup(Rank.from_environment()) as group:\n"
        "    outcome = repeat(group, {name: Named(name) for name in 'abc'}, 3)\n"
        "    group.barrier()\n"
        "print(json.dumps([''.join(order), outcome.samples]))"
    )
    for lines in run(code).values():
        order, samples = json.loads(lines[-1])
        assert order == "bca" + "cab" + "abc" + "bca" + "cab"  # the first two do not count
        assert samples == {name: [{name: 1.0}] * 3 for name in "abc"}


@pytest.mark.slow
def test_raw_tcp_merges_what_the_neighbour_has():
    code = (
        "import torch\n"
        "from dpwa.bench.measures.raw_tcp import RawTcp\n"
        "from dpwa.bench.plan import Rank\n"
        "from dpwa.bench.session import GlooGroup\n"
        "from dpwa.launch.ports import free_ports\n"
        "rank = Rank.from_environment()\n"
        "addresses = [None, None]\n"
        "mine = torch.tensor(free_ports(1))\n"
        "with GlooGroup(rank) as group:\n"
        "    ports = [torch.zeros_like(mine) for _ in addresses]\n"
        "    torch.distributed.all_gather(ports, mine)\n"
        "    addresses = [('127.0.0.1', int(port)) for port in ports]\n"
        "    flat = torch.full((1_000_000,), 4.0 * rank.index)\n"
        "    with RawTcp(flat, torch.zeros_like(flat), rank, addresses) as raw:\n"
        "        group.barrier()\n"
        "        raw.connect()\n"
        "        if rank.index == 0: raw.fetch_and_merge()\n"
        "        group.barrier()\n"
        "    print(float(flat.min()), float(flat.max()))"
    )
    assert run(code) == {0: ["2.0 2.0"], 1: ["4.0 4.0"]}
