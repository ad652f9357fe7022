"""The registry, and what holds for every codec."""

import re
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpwa.data import codecs
from dpwa.data.codecs import Codec, codec, codec_names, register_codec
from dpwa.data.codecs.sizes import payload_bytes
from dpwa.errors import ProtocolError, UnknownNameError, UserError

NAMES = ("none", "fp16", "bf16", "int8")
FLOATS = ("float64", "float32", "float16", "bfloat16")
PIECE_BYTES = 2**20
DOCUMENT = Path(__file__).parents[2] / "docs" / "links.md"


def piece_of(dtype, nbytes=PIECE_BYTES, seed=0):
    if dtype not in FLOATS:
        return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)
    dtype = getattr(torch, dtype)
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(nbytes // dtype.itemsize, generator=generator).to(dtype)
    return values.view(torch.uint8).numpy()


def through(name, piece, dtype):
    one = codec(name)
    payload = one.encode(piece, dtype)
    return one.decode(memoryview(payload), dtype, np.zeros_like(piece)), payload


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool", "bytes", "complex64"])
def test_what_is_no_real_number_with_a_fraction_passes_unchanged(name, dtype):
    piece = piece_of(dtype, 1008)
    decoded, payload = through(name, piece, dtype)
    assert np.array_equal(decoded, piece)
    assert np.shares_memory(payload, piece)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_decoded_piece_has_the_size_of_the_piece_and_the_piece_is_only_read(name, dtype):
    piece = piece_of(dtype, 3000)
    before = piece.copy()
    decoded, payload = through(name, piece, dtype)
    assert payload.nbytes == payload_bytes(name, piece.nbytes, dtype)
    assert decoded.nbytes == piece.nbytes
    assert decoded.dtype == np.uint8
    assert np.array_equal(piece, before)


@pytest.mark.parametrize(
    ("name", "dtype", "least"),
    [
        ("fp16", "float32", 2.0),
        ("bf16", "float64", 4.0),
        ("int8", "float32", 3.9),
        ("int8", "float64", 7.7),
        ("int8", "bfloat16", 1.9),
    ],
)
def test_pieces_shrink_as_much_as_documented(name, dtype, least):
    _, payload = through(name, piece_of(dtype), dtype)
    assert PIECE_BYTES / payload.nbytes >= least


@pytest.mark.parametrize("name", ["fp16", "bf16", "int8"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_payloads_may_be_read_only_and_need_no_alignment(name, dtype):
    piece = piece_of(dtype, 3000)
    decoded, payload = through(name, piece, dtype)
    shifted = memoryview(bytearray(b"x" + payload.tobytes()))[1:]
    for foreign in (payload.tobytes(), shifted):
        assert np.array_equal(codec(name).decode(foreign, dtype, np.zeros_like(piece)), decoded)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_equal_pieces_give_equal_payloads(name, dtype):
    one, piece = codec(name), piece_of(dtype)
    payloads = [one.encode(piece, dtype).tobytes() for _ in range(2)]
    assert payloads[0] == payloads[1]


def test_none_copies_nothing():
    piece, room = piece_of("float32"), np.zeros(PIECE_BYTES, np.uint8)
    payload = codec("none").encode(piece, "float32")
    assert payload is piece
    assert np.shares_memory(codec("none").decode(payload.data, "float32", room), piece)


@pytest.mark.parametrize("name", ["fp16", "int8"])
def test_a_payload_stays_as_it_is_while_a_view_of_it_is_left(name):
    one = codec(name)
    kept = one.encode(piece_of("float32"), "float32")[7:].data
    before = bytes(kept)
    for seed in range(1, 40):
        one.encode(piece_of("float32", seed=seed), "float32")
    assert bytes(kept) == before


@pytest.mark.parametrize("name", ["fp16", "int8"])
def test_memory_of_a_payload_that_nobody_looks_at_is_used_again(name):
    one, piece = codec(name), piece_of("float32")
    first = one.encode(piece, "float32")
    second, address = one.encode(piece, "float32"), first.ctypes.data
    assert second.ctypes.data != address
    del first
    assert one.encode(piece, "float32").ctypes.data == address


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_a_foreign_payload_is_decoded_or_refused_and_writes_nothing_beyond_the_piece(name, data):
    dtype = data.draw(st.sampled_from([*FLOATS, "int64", "bytes"]))
    nbytes = 8 * data.draw(st.integers(1, 80))
    _, payload = through(name, piece_of(dtype, nbytes), dtype)
    foreign = data.draw(st.binary(max_size=400) | altered(payload.tobytes()))
    around = np.full(nbytes + 128, 7, np.uint8)
    room = around[64:-64]
    try:
        decoded = codec(name).decode(foreign, dtype, room)
    except ProtocolError:
        assert (around == 7).all()
    else:
        assert decoded.nbytes == nbytes
        assert (around[:64] == 7).all()
        assert (around[-64:] == 7).all()


@st.composite
def altered(draw, payload):
    """A payload with some bytes changed, and now and then some too few or too many."""
    changed = bytearray(payload)
    for _ in range(draw(st.integers(0, 4))):
        changed[draw(st.integers(0, len(changed) - 1))] = draw(st.integers(0, 255))
    return bytes(changed[: draw(st.integers(0, len(changed)))]) if draw(st.booleans()) else changed


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("extra", [-1, 1])
def test_a_payload_of_another_size_is_refused(name, extra):
    piece = piece_of("float32", 4000)
    _, payload = through(name, piece, "float32")
    foreign = np.resize(payload, payload.nbytes + extra).data
    with pytest.raises(ProtocolError, match=r"(a|the) payload of"):
        codec(name).decode(foreign, "float32", piece)


def test_the_names_are_known_without_torch_or_numpy():
    code = (
        "import sys\n"
        "from dpwa.data.codecs import codec_names\n"
        f"assert codec_names() == {NAMES}\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


class TestRegistry:
    @pytest.fixture(autouse=True)
    def _own_registry(self, monkeypatch):
        monkeypatch.setattr(codecs, "_REGISTRY", deepcopy(codecs._REGISTRY))

    def test_a_codec_of_the_users_own_is_made_by_name(self):
        @register_codec("mine")
        class Mine(Codec):
            def encode(self, piece, dtype):
                return piece

            def decode(self, payload, dtype, room):
                return room

        assert codec_names() == (*NAMES, "mine")
        assert [codec(name).name for name in codec_names()] == [*NAMES, "mine"]

    def test_a_name_is_given_once(self):
        with pytest.raises(UserError, match="already registered"):
            register_codec("int8")(lambda: None)

    def test_an_unknown_name_lists_the_known_ones(self):
        with pytest.raises(UnknownNameError, match="known: none, fp16, bf16, int8"):
            codec("in8")

    def test_the_example_of_the_documentation_runs(self):
        example = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), flags=re.DOTALL)[0]
        exec(example, {})
        piece = piece_of("float32", 4000)
        decoded, payload = through("fp8", piece, "float32")
        assert payload.nbytes == 1000
        ratio = decoded.view(np.float32) / piece.view(np.float32)
        assert np.abs(ratio - 1).max() <= 2**-3
        with pytest.raises(ProtocolError):
            codec("fp8").decode(b"short", "float32", piece.copy())
