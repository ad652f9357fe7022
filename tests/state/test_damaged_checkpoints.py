"""Damage on disk, and power cuts: what is loaded is what was written, or the checkpoint before."""

import json
import os
import resource
from pathlib import Path

import numpy as np
import pytest

from dpwa.data.layout import Layout, TensorSpec
from dpwa.state.checkpoints import CheckpointFolder
from dpwa.state.replaced_parts import values_of, values_part
from dpwa.state.safetensors_image import State


def part(values):
    layout = Layout((TensorSpec("parameters", "uint8", values.shape, 1),))
    return values_part(layout, values)["values"]


def state(updates, **parts):
    return State(updates / 2, updates, {name: part(values) for name, values in parts.items()})


def newest(folder):
    """All that the newest checkpoint that is whole has."""
    saved = next(CheckpointFolder(folder, "w1", 3).newest_first())
    parts = {
        name: (p.image.tobytes(), p.numbers, p.fingerprint, p.descriptions, p.count)
        for name, p in saved.parts.items()
    }
    return saved.name, saved.clock, saved.updates, parts


@pytest.fixture
def two(tmp_path):
    """The older and the newer of two small checkpoints, as they are read when they are whole."""
    folder, found = CheckpointFolder(tmp_path, "w1", keep=3), []
    for updates in (1, 2):
        values = np.full(5, updates, np.uint8)
        folder.write(state(updates, model=values, optimizer=values + 1))
        found.append(newest(tmp_path))
    return found


def torn_and_flipped(path, bits):
    """Damage a file, yielding at each: so many bits of each byte alone, then all shorter lengths.

    Those end there, or with zeros, as a file that was made longer but not written. It is written in
    place: to make a file anew costs more than to read a checkpoint.
    """
    data = path.read_bytes()
    with path.open("r+b", buffering=0) as file:
        for place in range(len(data)):
            for bit in range(place, place + bits):
                os.pwrite(file.fileno(), bytes([data[place] ^ 1 << bit % 8]), place)
                yield
            os.pwrite(file.fileno(), data[place : place + 1], place)
        for place in reversed(range(len(data))):
            os.pwrite(file.fileno(), bytes(1), place)
            yield
        os.pwrite(file.fileno(), data, 0)
        for place in reversed(range(len(data))):
            os.ftruncate(file.fileno(), place)
            yield


@pytest.mark.parametrize("bits", [1, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("suffix", [".json", ".safetensors", ".optimizer.safetensors"])
def test_whatever_happens_to_any_byte_of_a_checkpoint_the_values_are_those_of_one_that_is_whole(
    tmp_path, caplog, two, suffix, bits
):
    older, newer = two
    path = tmp_path / (newer[0] + suffix)
    nbytes, refused = path.stat().st_size, 0
    for _ in torn_and_flipped(path, bits):
        caplog.clear()
        found = newest(tmp_path)
        if found != newer:
            assert found == older
            (line,) = caplog.messages
            assert line.startswith(f"w1: checkpoint {newer[0]} is ignored: ")
            assert "\n" not in line
            refused += 1
    assert refused > (bits + 1) * nbytes  # zeros in place of zeros change nothing


def shuffled(values, seed=0):
    """Ways in which disks go wrong that leave the sum of all words as it was."""
    rng = np.random.default_rng(seed)
    sectors = values.reshape(-1, 4096).copy()
    one, two = rng.choice(len(sectors), 2, replace=False)
    sectors[[one, two]] = sectors[[two, one]]
    yield "sectors swapped", sectors.reshape(-1)
    yield "words shifted", np.roll(values.view(np.uint64), 12_345).view(np.uint8)
    words = values.view(np.uint64).copy()
    up, down = (np.flatnonzero((words & 8) == bit)[seed] for bit in (0, 8))
    words[[up, down]] ^= np.uint64(8)
    yield "a bit column flipped twice", words.view(np.uint8)
    pieces = values.reshape(2, -1)
    yield "halves swapped", pieces[::-1].reshape(-1)


def test_damage_that_keeps_the_sum_of_all_words_is_found(tmp_path, caplog):
    values = np.random.default_rng(0).integers(0, 256, 8 << 20, dtype=np.uint8)
    folder = CheckpointFolder(tmp_path, "w1", keep=3)
    folder.write(state(1, model=values[:5]))
    path = tmp_path / f"{folder.write(state(2, model=values))}.safetensors"
    header = path.read_bytes()[: -values.nbytes]
    for what, damaged in shuffled(values):
        assert not np.array_equal(damaged, values)
        assert newest(tmp_path)[2] == 2
        path.write_bytes(header + damaged.tobytes())
        caplog.clear()
        assert newest(tmp_path)[2] == 1, what
        assert "does not match its checksum" in caplog.text
        path.write_bytes(header + values.tobytes())


OLD_RECORD = """{
 "format": 1,
 "name": "w1-000001-2",
 "clock": 1.5,
 "updates": 2,
 "parts": {
  "values": {
   "nbytes": 88,
   "checksum": 1135070480808825757,
   "numbers": "92a7666c6f617436349102",
   "kind": {
    "fingerprint": "26fc62162f28e1808320721de22f07d1",
    "tensors": [
     "'parameters' float64[2]"
    ]
   }
  }
 }
}"""
OLD_HEADER = b'{"parameters":{"dtype":"U8","shape":[16],"data_offsets":[0,16]}}'
OLD_IMAGE = len(OLD_HEADER).to_bytes(8, "little") + OLD_HEADER + np.full(2, 2.0).tobytes()


def test_a_checkpoint_of_the_first_format_is_read_by_the_check_that_it_has(tmp_path, caplog):
    record, image = tmp_path / "w1-000001-2.json", tmp_path / "w1-000001-2.safetensors"
    record.write_text(OLD_RECORD)
    image.write_bytes(OLD_IMAGE)
    folder = CheckpointFolder(tmp_path, "w1", keep=3)
    (saved,) = folder.newest_first()
    part = saved.parts["values"]
    assert (saved.clock, saved.updates) == (1.5, 2)
    assert values_of(part.image, part.numbers).tolist() == [2.0, 2.0]
    folder.write(state(7, values=np.zeros(3, np.uint8)))
    assert [each.updates for each in folder.newest_first()] == [7, 2]
    image.write_bytes(OLD_IMAGE[:-1] + b"\1")
    assert [each.updates for each in folder.newest_first()] == [7]
    assert "does not match its checksum" in caplog.text


def test_no_record_passes_for_one_of_the_first_format_to_get_by_without_a_digest(tmp_path, two):
    older, newer = two
    path = tmp_path / f"{newer[0]}.json"
    record = json.loads(path.read_text())
    for changes in ({"format": 1}, {"digest": None}, {"clock": 9.0}):
        path.write_text(json.dumps({**record, **changes}))
        assert newest(tmp_path) == older
    path.write_text(json.dumps(record))  # another indentation changes no value
    assert newest(tmp_path) == newer


def test_a_record_with_numbers_beyond_all_bounds_is_left_out(tmp_path, caplog):
    (tmp_path / "w1-000001-2.safetensors").write_bytes(OLD_IMAGE)
    numbers = [
        *(f'"clock": {clock}' for clock in ("NaN", "Infinity", "-0.5", "1e200", "9" * 400)),
        *(f'"updates": {updates}' for updates in ("1e999", "-1", 2**52 + 1, "NaN", 10**300)),
    ]
    changed = [
        OLD_RECORD.replace('"clock": 1.5' if "clock" in number else '"updates": 2', number)
        for number in numbers
    ]
    for broken in (*changed, "[" * 100_000):
        (tmp_path / "w1-000001-2.json").write_text(broken)
        assert list(CheckpointFolder(tmp_path, "w1", keep=3).newest_first()) == [], broken[:80]
    assert caplog.text.count("w1-000001-2 is ignored") == len(numbers) + 1


@pytest.mark.parametrize("suffix", [".json", ".safetensors", ".optimizer.safetensors"])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "1 TB"])
def test_files_that_are_none_of_a_checkpoint_are_named_and_cost_neither_time_nor_memory(
    tmp_path, caplog, two, suffix, kind
):
    older, newer = two
    path = tmp_path / (newer[0] + suffix)
    if kind == "1 TB":
        os.truncate(path, 1 << 40)
    else:
        path.unlink()
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "folder":
            path.mkdir()
    resource.setrlimit(resource.RLIMIT_AS, (64 << 30, resource.RLIM_INFINITY))
    try:
        assert newest(tmp_path) == older
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    (line,) = caplog.messages
    assert newer[0] in line
    assert line.endswith("[DPWA-W032]")
    assert kind in ("folder", "1 TB") or f"not a regular file: '{path}'" in line


def test_each_file_is_on_the_disk_before_its_name_and_each_new_folder_in_the_one_above_it(
    tmp_path, monkeypatch
):
    done, written, fsync, replace = [], [], os.fsync, Path.replace

    def flushed(descriptor):
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        nbytes = path.stat().st_size if path.is_file() else None
        done.append(("flush", path.relative_to(tmp_path).as_posix(), nbytes))
        fsync(descriptor)

    def renamed(path, target):
        written.append(path.name)
        done.append(("rename", target.relative_to(tmp_path).as_posix(), None))
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(Path, "replace", renamed)
    folder = CheckpointFolder(tmp_path / "new" / "folder", "w1", keep=1)
    for updates in (1, 2):
        done.clear()
        name = folder.write(state(updates, model=np.zeros(5, np.uint8)))
        files = [
            step
            for unfinished, file in zip(
                written[-2:], (f"{name}.safetensors", f"{name}.json"), strict=True
            )
            for step in (
                ("flush", f"new/folder/{unfinished}", (folder._folder / file).stat().st_size),
                ("rename", f"new/folder/{file}", None),
                ("flush", "new/folder", None),
            )
        ]
        made = [("flush", "new", None), ("flush", ".", None)] if updates == 1 else []
        assert done == made + files
