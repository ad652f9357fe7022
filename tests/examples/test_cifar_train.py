from __future__ import annotations

import csv
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from examples_support import DPWA, EXAMPLES, Runner, dump, interrupted, load_example, run_here

from dpwa.errors import UserError

TRAIN = EXAMPLES / "cifar10" / "train.py"
QUICK = ("--model", "small", "--batch-size", "8", "--lr", "0.01")
EPOCHS = 40  # a few seconds: enough for both nodes to be there at the same time


@pytest.fixture(scope="module")
def training() -> ModuleType:
    return load_example("cifar10/training.py")


def trainer(
    training: ModuleType,
    data_dir: Path,
    *,
    rank: int = 0,
    seed: int = 0,
    options: tuple[str, ...] = (),
) -> Any:
    """One of two nodes, before its first step."""
    parse_arguments = load_example("cifar10/options.py").parse_arguments
    arguments = ["--data-dir", str(data_dir), *QUICK, "--seed", str(seed), *options]
    place = training.Place("w", None, rank, world_size=2)
    return training.Trainer(parse_arguments(arguments), place, training.read_cifar10(data_dir))


def same_weights(first: Any, second: Any) -> bool:
    one, other = first.model.state_dict(), second.model.state_dict()
    return all(torch.equal(one[key], other[key]) for key in one)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_alone_it_trains_logs_and_leaves_weights_that_load(
    data_dir: Path, tmp_path: Path, models: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "runs" / "net.pt"
    ended = run_here(
        TRAIN, "--data-dir", data_dir, *QUICK,
        "--epochs", 3, "--lr-decay", 0.5, "--lr-decay-every", 2, "--output", output,
    )  # fmt: skip
    assert ended == (0, "")
    assert "this process trains alone" in capsys.readouterr().out
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


def test_the_same_seed_gives_the_same_weights(training: ModuleType, data_dir: Path) -> None:
    first, second, other = (trainer(training, data_dir, seed=seed) for seed in (3, 3, 4))
    for one in (first, second, other):
        assert one.train_epoch(None).steps == 5
    assert same_weights(first, second)
    assert not same_weights(first, other)


def test_all_nodes_start_alike_and_go_their_own_ways(training: ModuleType, data_dir: Path) -> None:
    first, second = (trainer(training, data_dir, rank=rank) for rank in (0, 1))
    assert same_weights(first, second)
    assert not torch.equal(first.shard.images, second.shard.images)
    for one in (first, second):
        one.train_epoch(None)
    assert not same_weights(first, second)


@pytest.mark.parametrize(("batches", "is_recomputed"), [(2, True), (0, False)])
def test_batch_norm_statistics_are_recomputed_before_a_test_unless_switched_off(
    training: ModuleType, data_dir: Path, batches: int, is_recomputed: bool
) -> None:
    one = trainer(training, data_dir, options=("--batch-norm-batches", str(batches)))
    state = one.model.state_dict()
    before = {key: value.clone() for key, value in state.items()}
    assert 0.0 <= one.test_accuracy() <= 1.0
    changed = {key for key in state if not torch.equal(state[key], before[key])}
    statistics = {key for key in state if "running" in key or "num_batches" in key}
    assert changed == (statistics if is_recomputed else set())


@pytest.mark.slow
def test_two_launched_nodes_merge_and_write_files_of_their_own(
    run: Runner, data_dir: Path, tmp_path: Path
) -> None:
    done = run(
        *DPWA, "launch", "-n", 2, "--", sys.executable, TRAIN, "--data-dir", data_dir, *QUICK,
        "--epochs", EPOCHS, "--output", tmp_path / "net.pt",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    logs = sorted(tmp_path.glob("net-*.csv"))
    assert len(logs) == 2
    assert len(list(tmp_path.glob("net-*.pt"))) == 2
    for log in map(rows, logs):
        assert [row["steps"] for row in log] == ["5"] * EPOCHS  # half of 80 images, 8 a step
        assert sum(int(row["merges"]) for row in log) > 0
        assert any(float(row["consensus_distance"] or 0) > 0 for row in log)


@pytest.mark.slow
def test_two_launched_nodes_average_their_gradients(
    run: Runner, data_dir: Path, tmp_path: Path
) -> None:
    done = run(
        *DPWA, "launch", "-n", 2, "--", "env", "DPWA_ALGORITHM=together", sys.executable, TRAIN,
        "--data-dir", data_dir, *QUICK, "--epochs", 3, "--output", tmp_path / "net.pt",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("consensus distance went from 0 to 0 in") == 2


def test_a_missing_folder_is_one_clear_line(tmp_path: Path) -> None:
    code, errors = run_here(TRAIN, "--data-dir", tmp_path / "nowhere")
    assert code == 2
    assert errors.count("\n") == 1
    assert "no such folder. Expected the unpacked folder cifar-10-batches-py" in errors


def test_an_output_that_cannot_be_written_is_one_clear_line(data_dir: Path, tmp_path: Path) -> None:
    dump(tmp_path / "file", None)
    output = tmp_path / "file" / "net"
    code, errors = run_here(TRAIN, "--data-dir", data_dir, "--output", output)
    assert code == 2
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--batch-size", "0", "expected an integer from 1 to 2147483647 (got 0)"),
        ("--batch-norm-batches", "-1", "expected an integer from 0 to 2147483647 (got -1)"),
        ("--epochs", "x", "expected an integer from 1 to 2147483647 (got x)"),
        ("--seed", "99999999999999999999", "expected an integer from 0 to 4294967295 (got 999"),
        ("--lr", "nan", "expected a finite number of at least 0 (got nan)"),
        ("--lr", "fast", "expected a finite number of at least 0 (got fast)"),
        ("--model", "lenet", "invalid choice"),
        ("--output", ".", "expected a file such as runs/net.pt (got .)"),
    ],
)
def test_a_wrong_option_is_refused_with_what_was_expected(
    capsys: pytest.CaptureFixture[str], option: str, value: str, expected: str
) -> None:
    parse_arguments = load_example("cifar10/options.py").parse_arguments
    with pytest.raises(SystemExit, match="2"):
        parse_arguments(["--data-dir", "anywhere", f"{option}={value}"])
    last_line = capsys.readouterr().err.splitlines()[-1]
    assert f"argument {option}: {expected}" in last_line


def test_the_largest_seed_is_one_to_train_with(training: ModuleType, data_dir: Path) -> None:
    assert trainer(training, data_dir, rank=1, seed=2**32 - 1).train_epoch(None).steps == 5


def test_a_half_set_environment_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPWA_NAME", "w1")
    monkeypatch.setenv("DPWA_CONFIG", "nodes.yaml")
    code, errors = run_here(TRAIN, "--data-dir", "anywhere")
    assert (code, errors) == (2, "train.py: DPWA_NAME is set, but DPWA_RANK is not\n")


def options_of(*arguments: object) -> Any:
    return load_example("cifar10/options.py").parse_arguments([*map(str, arguments)])


def test_the_options_of_2017_name_the_configuration_and_the_node(tmp_path: Path) -> None:
    nodes = [{"name": f"w{rank}", "host": "localhost", "port": 45000 + rank} for rank in (1, 2, 3)]
    config = tmp_path / "dpwa.yaml"
    config.write_text(f"- nodes: {nodes}\n- fetch_probability: 1\n")
    place_of = load_example("cifar10/options.py").Place.of
    place = place_of(options_of("--config-file", config, "--name", "w2"))
    assert (place.name, place.config, place.rank, place.world_size) == ("w2", str(config), 1, 3)
    with pytest.raises(UserError, match="no node is named 'w9'"):
        place_of(options_of("--config-file", config, "--name", "w9"))
    assert place_of(options_of()).config is None


@pytest.mark.parametrize("half", [("--name", "w1"), ("--config-file", "nodes.yaml")])
def test_one_of_the_two_alone_is_refused(
    capsys: pytest.CaptureFixture[str], half: tuple[str, str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        options_of(*half)
    assert "give --config-file and --name together" in capsys.readouterr().err


def test_it_resumes_from_the_weights_and_the_epoch_of_an_earlier_run(
    training: ModuleType, data_dir: Path, tmp_path: Path
) -> None:
    output = tmp_path / "net.pt"
    same = (
        "--data-dir", data_dir, *QUICK, "--steps-per-epoch", 1, "--output", output,
        "--lr-decay", 0.5, "--lr-decay-every", 2,
    )  # fmt: skip
    place = training.Place()
    with pytest.raises(UserError, match=r"net-alone\.pt: there is no such file"):
        training.train(options_of(*same, "--resume"), place)
    training.train(options_of(*same, "--epochs", 2), place)
    before = torch.load(output.with_name("net-alone.pt"), weights_only=True)
    one = training.Trainer(options_of(*same), place, training.read_cifar10(data_dir))
    assert training.resume(one, output.with_name("net-alone.pt")) == 2
    assert all(torch.equal(before[key], value) for key, value in one.model.state_dict().items())
    training.train(options_of(*same, "--epochs", 3, "-r"), place)
    log = rows(output.with_name("net-alone.csv"))
    assert [row["epoch"] for row in log] == ["1", "2", "3"]
    assert [row["learning_rate"] for row in log] == ["0.01", "0.01", "0.005"]
    with pytest.raises(UserError, match="no weights of vgg16"):
        training.train(options_of(*same, "--resume", "--model", "vgg16"), place)


@pytest.mark.slow
def test_ctrl_c_ends_quietly(data_dir: Path, tmp_path: Path) -> None:
    options = ("--data-dir", data_dir, *QUICK, "--epochs", 100_000, "--output", tmp_path / "net.pt")
    assert interrupted("stdout", "epoch 2", TRAIN, *options) == (130, "")
