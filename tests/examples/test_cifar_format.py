from __future__ import annotations

import codecs
import os
import pickle
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from examples_support import CLASS_NAMES, TEST_IMAGES, TRAIN_IMAGES_PER_FILE, batch, dump


class Calls:
    """Pickles as a call of any function with any arguments."""

    def __init__(self, function: Any, *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Any, tuple[object, ...]]:
        return self.call


def written_by_python2(images: int) -> bytes:
    """A batch as Python 2 and its numpy wrote it: byte strings, old module path, protocol 2."""

    def string(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    def long_string(value: bytes) -> bytes:
        return b"T" + len(value).to_bytes(4, "little") + value

    def integer(value: int) -> bytes:
        return b"J" + value.to_bytes(4, "little", signed=True)

    pixels = bytes(range(256)) * 12 * images
    empty_array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n"
        + integer(0) + b"\x85" + string(b"b") + b"\x87R"
    )  # fmt: skip
    dtype = (
        b"cnumpy\ndtype\n" + string(b"u1") + integer(0) + integer(1) + b"\x87R("
        + integer(3) + string(b"|") + b"NNN" + integer(-1) * 2 + integer(0) + b"tb"
    )  # fmt: skip
    state = (
        b"(" + integer(1) + integer(images) + integer(3072) + b"\x86" + dtype + b"\x89"
        + long_string(pixels) + b"tb"
    )  # fmt: skip
    labels = b"](" + b"".join(integer(index % 10) for index in range(images)) + b"e"
    return (
        b"\x80\x02}(" + string(b"data") + empty_array + state + string(b"labels") + labels + b"u."
    )


def test_the_whole_set_has_the_documented_shapes_and_types(
    cifar: ModuleType, data_dir: Path
) -> None:
    data = cifar.read_cifar10(data_dir)
    assert data.train.images.shape == (5 * TRAIN_IMAGES_PER_FILE, 3, 32, 32)
    assert data.test.images.shape == (TEST_IMAGES, 3, 32, 32)
    assert data.train.images.dtype == torch.uint8
    assert data.train.labels.dtype == torch.int64
    assert data.class_names == tuple(name.decode() for name in CLASS_NAMES)


def test_images_and_labels_are_those_of_the_files_in_their_order(
    cifar: ModuleType, data_dir: Path
) -> None:
    train = cifar.read_cifar10(data_dir).train
    second = batch(TRAIN_IMAGES_PER_FILE, seed=2)
    begin, end = TRAIN_IMAGES_PER_FILE, 2 * TRAIN_IMAGES_PER_FILE
    assert train.labels[begin:end].tolist() == second[b"labels"]
    assert np.array_equal(train.images[begin:end].numpy().reshape(-1, 3072), second[b"data"])


def test_a_file_of_python_2_is_read(cifar: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "data_batch_1"
    path.write_bytes(written_by_python2(12))
    # Numpy's own unpickling says what these bytes mean.
    reference = pickle.loads(path.read_bytes(), encoding="bytes")
    split = cifar.read_batch(path)
    assert np.array_equal(split.images.numpy().reshape(12, 3072), reference[b"data"])
    assert split.labels.tolist() == reference[b"labels"]


def test_channels_are_red_green_blue_and_rows_run_from_left_to_right(
    cifar: ModuleType, tmp_path: Path
) -> None:
    pixels = np.zeros((1, 3072), dtype=np.uint8)
    pixels[0, 1024 + 2 * 32 + 5] = 255  # green, third row, sixth column
    dump(tmp_path / "one", {b"data": pixels, b"labels": [7]})
    image = cifar.read_batch(tmp_path / "one").images[0]
    assert image.nonzero().tolist() == [[1, 2, 5]]


def test_an_array_in_fortran_order_is_read_alike(cifar: ModuleType, tmp_path: Path) -> None:
    content = batch(4, seed=1)
    dump(tmp_path / "c", content)
    dump(tmp_path / "fortran", {**content, b"data": np.asfortranarray(content[b"data"])})
    assert torch.equal(
        cifar.read_batch(tmp_path / "c").images, cifar.read_batch(tmp_path / "fortran").images
    )


@pytest.mark.parametrize(
    ("name", "attack"),
    [
        ("system", Calls(os.system, "touch EXECUTED")),
        ("eval", Calls(eval, "open('EXECUTED', 'w')")),
        ("getattr", Calls(getattr, "", "upper")),
        ("numpy", Calls(np.save, "EXECUTED.npy", b"")),
        ("fromfile", Calls(np.fromfile, "data")),
        ("object array", np.array([{}], dtype=object)),
        ("doubles", np.zeros((1, 3072))),
        ("codec", Calls(codecs.encode, "text", "rot13")),
    ],
)
def test_a_pickle_that_asks_for_more_is_refused_and_nothing_runs(
    cifar: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    attack: object,
) -> None:
    monkeypatch.chdir(tmp_path)
    dump(tmp_path / "evil", {b"data": attack, b"labels": [0]})
    with pytest.raises(cifar.CifarError, match=r"evil: the file is not a CIFAR-10 .+: .+"):
        cifar.read_batch(tmp_path / "evil")
    assert [path.name for path in tmp_path.iterdir()] == ["evil"]


def test_the_attacks_above_would_work_on_plain_pickle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pickle.loads(pickle.dumps(Calls(os.system, "touch EXECUTED"), protocol=2))
    assert (tmp_path / "EXECUTED").exists()


def test_the_refusal_names_what_was_asked_for(cifar: ModuleType, tmp_path: Path) -> None:
    dump(tmp_path / "evil", Calls(os.system, "true"))
    with pytest.raises(cifar.CifarError, match=r"uses posix\.system"):
        cifar.read_batch(tmp_path / "evil")


@pytest.mark.parametrize("kept", [0, 1, 40, 1000, -1])
def test_a_truncated_file_is_one_clear_error(cifar: ModuleType, data_dir: Path, kept: int) -> None:
    path = data_dir / "data_batch_3"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(cifar.CifarError, match=r"data_batch_3: the file is not a CIFAR-10 .+"):
        cifar.read_cifar10(data_dir)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ([1, 2], "it has no dict"),
        ({b"labels": [0]}, r"b'data' to be uint8 of shape \(N, 3072\)"),
        ({b"data": np.zeros((1, 3071), np.uint8), b"labels": [0]}, r"shape \(N, 3072\)"),
        ({b"data": np.zeros(3072, np.uint8), b"labels": [0]}, r"shape \(N, 3072\)"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0]}, "2 integers from 0 to 9"),
        ({b"data": np.zeros((1, 3072), np.uint8), b"labels": [10]}, "1 integers from 0 to 9"),
        ({b"data": np.zeros((1, 3072), np.uint8), b"labels": [True]}, "1 integers from 0 to 9"),
        ({b"data": np.zeros((1, 3072), np.uint8)}, "1 integers from 0 to 9"),
    ],
)
def test_other_content_is_refused_with_what_was_expected(
    cifar: ModuleType, tmp_path: Path, content: object, expected: str
) -> None:
    dump(tmp_path / "batch", content)
    with pytest.raises(cifar.CifarError, match=expected):
        cifar.read_batch(tmp_path / "batch")


def test_missing_files_are_all_named_at_once(cifar: ModuleType, data_dir: Path) -> None:
    (data_dir / "data_batch_2").unlink()
    (data_dir / "batches.meta").unlink()
    with pytest.raises(cifar.CifarError, match=r"no data_batch_2, batches\.meta\. Expected"):
        cifar.read_cifar10(data_dir)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_shards_are_disjoint_and_together_the_whole(
    cifar: ModuleType, data_dir: Path, world_size: int
) -> None:
    train = cifar.read_cifar10(data_dir).train
    shards = [cifar.private_shard(train, rank, world_size, 5) for rank in range(world_size)]
    # Every image of the tiny set is different noise, so its bytes tell which one it is.
    owned = [image.numpy().tobytes() for shard in shards for image in shard.images]
    assert sorted(owned) == sorted(image.numpy().tobytes() for image in train.images)
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


def test_an_image_keeps_its_label_in_its_shard(cifar: ModuleType, data_dir: Path) -> None:
    train = cifar.read_cifar10(data_dir).train
    label_of = {
        image.numpy().tobytes(): int(label)
        for image, label in zip(train.images, train.labels, strict=True)
    }
    shard = cifar.private_shard(train, 1, 2, 0)
    assert [label_of[image.numpy().tobytes()] for image in shard.images] == shard.labels.tolist()


def test_more_nodes_than_images_is_refused(cifar: ModuleType, data_dir: Path) -> None:
    train = cifar.read_cifar10(data_dir).train
    with pytest.raises(cifar.CifarError, match="cannot be divided among 81 nodes"):
        cifar.private_shard(train, 0, 81, 0)


def test_normalized_images_of_the_mean_colour_are_zero(cifar: ModuleType) -> None:
    mean = torch.tensor([0.4914, 0.4822, 0.4465]) * 255
    images = mean.round().to(torch.uint8).view(1, 3, 1, 1).expand(2, 3, 32, 32)
    normalized = cifar.normalize(images)
    assert normalized.dtype == torch.float32
    assert normalized.abs().max() < 0.01
