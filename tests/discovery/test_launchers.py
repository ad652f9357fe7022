"""What SLURM and other launchers tell a process, and mistakes in it."""

import socket

import pytest

from dpwa.config import load_config
from dpwa.discovery.launchers import (
    Kubernetes,
    Mpi,
    SkyPilot,
    Slurm,
    expanded,
    first_port,
    tasks_of_hosts,
)
from dpwa.errors import UserError

TWO_HOSTS = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_PROCID": "3",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "1",
}


@pytest.mark.parametrize(
    ("hosts", "names"),
    [
        ("login", ["login"]),
        ("a,b.example.org", ["a", "b.example.org"]),
        ("gpu[1-3]", ["gpu1", "gpu2", "gpu3"]),
        ("gpu[008-011,20],login", ["gpu008", "gpu009", "gpu010", "gpu011", "gpu20", "login"]),
        ("r[1-2]n[1-2]-ib", ["r1n1-ib", "r1n2-ib", "r2n1-ib", "r2n2-ib"]),
    ],
)
def test_lists_of_hosts(hosts, names):
    assert expanded(hosts) == names


@pytest.mark.parametrize("hosts", ["", "gpu[1-", "gpu[x]", "gpu[1-2", "gpu1]"])
def test_what_is_no_list_of_hosts(hosts):
    with pytest.raises(UserError, match="expected"):
        expanded(hosts)


def test_numbers_of_tasks():
    assert tasks_of_hosts("2(x3),1") == [2, 2, 2, 1]
    assert tasks_of_hosts("4") == [4]
    with pytest.raises(UserError, match="expected tasks per host"):
        tasks_of_hosts("two")


def clusters(environ, places):
    """The cluster as each of the tasks sees it."""
    return [
        Slurm().cluster({**environ, "SLURM_NODEID": str(node), "SLURM_LOCALID": str(task)}, None)
        for node, task in places
    ]


def test_all_tasks_of_a_step_see_the_same_cluster():
    seen = clusters(TWO_HOSTS, [(0, 0), (0, 1), (1, 0), (1, 1)])
    assert [name for name, _ in seen] == ["gpu07-0", "gpu07-1", "gpu08-0", "gpu08-1"]
    addresses = [[(n["name"], n["host"], n["port"]) for n in told["nodes"]] for _, told in seen]
    port = first_port(TWO_HOSTS)
    assert addresses == 4 * [
        [
            ("gpu07-0", "gpu07", port),
            ("gpu07-1", "gpu07", port + 1),
            ("gpu08-0", "gpu08", port),
            ("gpu08-1", "gpu08", port + 1),
        ]
    ]
    for name, told in seen:  # a host may know its own name as 127.0.1.1
        assert [n["name"] for n in told["nodes"] if n.get("bind") == "*"] == [name]
        assert load_config(told, environ={}).node(name).bind == "*"


def test_on_one_host_nothing_leaves_it():
    alone = {**TWO_HOSTS, "SLURM_STEP_NODELIST": "box", "SLURM_STEP_TASKS_PER_NODE": "3"}
    ((name, told),) = clusters(alone, [(0, 2)])
    assert name == "box-2"
    assert [(n["host"], n.get("bind")) for n in told["nodes"]] == 3 * [("127.0.0.1", None)]


def test_steps_have_ports_of_their_own():
    steps = [{**TWO_HOSTS, "SLURM_STEP_ID": str(step)} for step in range(20)]
    assert len({first_port(step) for step in steps}) > 15


def test_the_script_of_sbatch_itself_is_no_task():
    batch = {k: v for k, v in TWO_HOSTS.items() if not k.startswith("SLURM_STEP")}
    assert Slurm().told(batch) == ""
    assert Slurm().told(TWO_HOSTS) == "task 3 of 4 on gpu[07-08]"


@pytest.mark.parametrize(
    "wrong",
    [
        {"SLURM_NODEID": "2"},
        {"SLURM_NODEID": "x"},
        {"SLURM_LOCALID": "2"},
        {"SLURM_STEP_TASKS_PER_NODE": "4"},
    ],
)
def test_what_makes_no_sense_under_slurm_is_shown(wrong):
    with pytest.raises(UserError, match="SLURM_STEP_NODELIST=gpu"):
        Slurm().cluster({**TWO_HOSTS, **wrong}, None)


def test_machines_of_skypilot():
    environ = {"SKYPILOT_NODE_IPS": "10.0.0.5\n10.0.0.6", "SKYPILOT_NODE_RANK": "1"}
    name, told = SkyPilot().cluster(environ, None)
    assert name == "machine1"
    assert [(n["name"], n["host"]) for n in told["nodes"]] == [
        ("machine0", "10.0.0.5"),
        ("machine1", "10.0.0.6"),
    ]
    load_config(told, environ={})
    with pytest.raises(UserError, match="below 2"):
        SkyPilot().cluster({**environ, "SKYPILOT_NODE_RANK": "2"}, None)


@pytest.mark.parametrize(
    ("launcher", "environ"),
    [
        (Slurm(), TWO_HOSTS),
        (SkyPilot(), {"SKYPILOT_NODE_IPS": "10.0.0.5", "SKYPILOT_NODE_RANK": "0"}),
        (Kubernetes(), {"JOB_COMPLETION_INDEX": "0", "WORLD_SIZE": "2"}),
    ],
)
def test_a_name_that_the_others_could_not_know_is_refused(launcher, environ):
    with pytest.raises(UserError, match="because dpwa names the nodes"):
        launcher.cluster(environ, "mine")


@pytest.mark.parametrize("kind", ["OMPI_COMM_WORLD_", "PMI_"])
def test_processes_of_mpirun_have_rank_and_size_and_meet_on_their_host(kind):
    environ = {f"{kind}RANK": "0", f"{kind}SIZE": "1", "PMIX_NAMESPACE": kind}
    assert Mpi().told(environ).startswith("rank 0 of 1, which exchange their addresses at 127.")
    name, told = Mpi().cluster(environ, None)
    assert name == "rank0"
    assert load_config(told, environ={}).node(name).host == "127.0.0.1"
    assert Mpi().told({f"{kind}RANK": "0"}) == ""
    with pytest.raises(
        UserError, match="mpirun: expected whole numbers, with RANK below WORLD_SIZE"
    ):
        Mpi().cluster({**environ, f"{kind}RANK": "1"}, None)
    far = {**environ, f"{kind}SIZE": "8", f"{kind}LOCAL_SIZE": "4"}
    with pytest.raises(UserError, match=r"expected MASTER_ADDR.*only 4 of 8 processes"):
        Mpi().told(far)
    assert "rank 0 of 8" in Mpi().told({**far, "MASTER_ADDR": "10.0.0.1"})


def test_tasks_of_srun_are_those_of_slurm_though_they_have_pmi():
    assert Mpi().told({**TWO_HOSTS, "PMI_RANK": "3", "PMI_SIZE": "4"}) == ""


def test_pods_of_an_indexed_job_have_the_names_of_their_hosts(monkeypatch):
    monkeypatch.setattr(socket, "getfqdn", lambda: "train-2.dpwa.default.svc.cluster.local")
    environ = {"JOB_COMPLETION_INDEX": "2", "WORLD_SIZE": "3"}
    assert Kubernetes().told(environ).startswith("pod 2 of 3 of an indexed job")
    assert Kubernetes().told({"JOB_COMPLETION_INDEX": "2"}) == ""
    name, told = Kubernetes().cluster(environ, None)
    nodes = load_config(told, environ={}).nodes
    assert name == "train-2"
    assert [node.name for node in nodes] == ["train-0", "train-1", "train-2"]
    assert {node.host.partition(".")[2] for node in nodes} == {"dpwa.default.svc.cluster.local"}
    assert [node.bind for node in nodes] == [None, None, "*"]
    with pytest.raises(UserError, match="JOB_COMPLETION_INDEX: expected a whole number below 3"):
        Kubernetes().cluster({**environ, "JOB_COMPLETION_INDEX": "3"}, None)
