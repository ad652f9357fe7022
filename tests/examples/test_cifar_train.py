from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from examples_support import DPWA, EXAMPLES, Runner, dump

TRAIN = EXAMPLES / "cifar10" / "train.py"
QUICK = ("--model", "small", "--batch-size", "8", "--lr", "0.01")


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_alone_it_trains_logs_and_leaves_weights_that_load(
    run: Runner, data_dir: Path, tmp_path: Path, models: ModuleType
) -> None:
    output = tmp_path / "runs" / "net.pt"
    done = run(
        sys.executable, "-W", "error", TRAIN, "--data-dir", data_dir, *QUICK,
        "--epochs", 3, "--lr-decay", 0.5, "--lr-decay-every", 2, "--output", output,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "training alone" in done.stdout
    log = rows(output.with_name("net-alone.csv"))
    assert [row["epoch"] for row in log] == ["1", "2", "3"]
    assert [row["steps"] for row in log] == ["10", "10", "10"]  # 80 images, 8 a step
    assert [row["learning_rate"] for row in log] == ["0.01", "0.01", "0.005"]
    assert float(log[-1]["train_loss"]) < float(log[0]["train_loss"])
    assert [row["merges"] for row in log] == ["0", "0", "0"]
    weights = torch.load(output.with_name("net-alone.pt"), weights_only=True)
    models.small().load_state_dict(weights)
    assert sorted(path.name for path in output.parent.iterdir()) == [
        "net-alone.csv",
        "net-alone.pt",
    ]


def test_the_same_seed_gives_the_same_weights(run: Runner, data_dir: Path, tmp_path: Path) -> None:
    for name in ("first", "second"):
        done = run(
            sys.executable, TRAIN, "--data-dir", data_dir, *QUICK, "--epochs", 1,
            "--steps-per-epoch", 2, "--batch-norm-batches", 0, "--output", tmp_path / name,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert rows(tmp_path / f"{name}-alone.csv")[0]["steps"] == "2"
    first, second = (
        torch.load(tmp_path / f"{name}-alone.pt", weights_only=True) for name in ("first", "second")
    )
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_two_launched_nodes_merge_and_write_files_of_their_own(
    run: Runner, data_dir: Path, tmp_path: Path
) -> None:
    done = run(
        *DPWA, "launch", "-n", 2, "--", sys.executable, TRAIN, "--data-dir", data_dir, *QUICK,
        "--epochs", 20, "--output", tmp_path / "net.pt",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    logs = sorted(tmp_path.glob("net-*.csv"))
    assert len(logs) == 2
    assert len(list(tmp_path.glob("net-*.pt"))) == 2
    for log in map(rows, logs):
        assert [row["steps"] for row in log] == ["5"] * 20  # half of 80 images, 8 a step
        assert sum(int(row["merges"]) for row in log) > 0
        assert any(float(row["consensus_distance"] or 0) > 0 for row in log)


def test_a_missing_folder_is_one_clear_line(run: Runner, tmp_path: Path) -> None:
    done = run(sys.executable, TRAIN, "--data-dir", tmp_path / "nowhere")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "expected the unpacked folder cifar-10-batches-py" in done.stderr


def test_a_damaged_file_is_one_clear_line(run: Runner, data_dir: Path) -> None:
    (data_dir / "test_batch").write_bytes(b"\x80\x02}")
    done = run(sys.executable, TRAIN, "--data-dir", data_dir)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "test_batch: not a CIFAR-10 python batch" in done.stderr


def test_an_output_that_cannot_be_written_is_one_clear_line(
    run: Runner, data_dir: Path, tmp_path: Path
) -> None:
    dump(tmp_path / "file", None)
    done = run(sys.executable, TRAIN, "--data-dir", data_dir, "--output", tmp_path / "file" / "net")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "mistake", [("--batch-size", "0"), ("--lr", "nan"), ("--model", "lenet"), ("--epochs", "x")]
)
def test_a_wrong_option_is_refused_by_its_name(run: Runner, mistake: tuple[str, str]) -> None:
    done = run(sys.executable, TRAIN, "--data-dir", "anywhere", *mistake)
    assert done.returncode == 2
    assert f"argument {mistake[0]}" in done.stderr.splitlines()[-1]


def test_a_half_set_environment_is_one_clear_line(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPWA_NAME", "w1")
    monkeypatch.setenv("DPWA_CONFIG", "nodes.yaml")
    done = run(sys.executable, TRAIN, "--data-dir", "anywhere")
    assert done.returncode == 2
    assert done.stderr == "train.py: DPWA_NAME is set, but DPWA_RANK is not\n"


def test_ctrl_c_ends_quietly(data_dir: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [
            sys.executable, TRAIN, "--data-dir", data_dir, *QUICK,
            "--epochs", "100000", "--output", tmp_path / "net.pt",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        while "epoch 2" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, errors) == (130, "")
