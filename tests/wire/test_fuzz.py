import os
import random

import fuzz_decoder
import pytest
from support.valid_messages import valid_message

from dpwa.wire.messages import decode, message_types

SEED = 3


@pytest.mark.parametrize("kind", message_types(), ids=lambda kind: kind.__name__)
def test_every_type_of_message_is_in_the_corpus(kind):
    name = kind.model_fields["type"].default
    data = (fuzz_decoder.CORPUS / f"{name}.msgpack").read_bytes()
    frames = [data] if kind.max_payload_bytes is None else [data, b"payload"]
    assert type(decode(frames)[0]) is kind, "write it again: fuzz_decoder.py --write-corpus"
    assert valid_message(kind, random.Random(SEED))


@pytest.mark.parametrize("seconds", [2, pytest.param(600, marks=pytest.mark.slow)])
@pytest.mark.timeout(7200)
def test_nothing_that_comes_does_harm(seconds):
    if seconds > 2:
        seconds = float(os.environ.get("DPWA_FUZZ_S", seconds))
    print(f"seed {SEED}")
    findings, tried, _ = fuzz_decoder.fuzz(seconds, SEED)
    assert not findings
    assert tried > 100


def test_a_finding_is_found():
    def breaks(data):
        raise KeyError("k")

    def hoards(data):
        bytearray(2 * fuzz_decoder.MAX_BYTES)

    assert fuzz_decoder.check(breaks, b"", is_traced=False)[1].startswith("KeyError")
    assert "bytes for" in fuzz_decoder.check(hoards, b"", is_traced=True)[1]
    assert fuzz_decoder.check(len, b"", is_traced=True)[1] == ""
