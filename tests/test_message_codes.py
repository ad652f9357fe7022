"""What dpwa shows ends with a code that docs/troubleshooting.md has."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest
from support.commands import run_dpwa

from dpwa import load_config
from dpwa.errors import (
    ConfigError,
    JoinTimeoutError,
    LeftBehindError,
    PeerLost,
    ProtocolError,
    UserError,
    VersionError,
)
from dpwa.runtime import DescriptorsError

PAGE = Path(__file__).parents[1] / "docs" / "troubleshooting.md"
CLOSED = "node w1 is closed [DPWA-E058]"


def code_at_end(text: str) -> str:
    """Return the code that a text ends with, which the page has an anchor for."""
    code = text.rstrip().rpartition(" [")[2].removesuffix("]")
    assert f'<a id="{code.lower()}"></a>{code} |' in PAGE.read_text("utf-8"), text
    return code


def test_each_line_about_a_broken_configuration_ends_with_its_code(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("nodes: [{name: w1, port: 99999}]\nseeed: 3\n")
    done = run_dpwa("config", "check", file)
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 2
    codes = [code_at_end(line) for line in done.stderr.splitlines()]
    assert len(set(codes)) == 2


def test_an_error_ends_with_its_code_and_quotes_without(tmp_path):
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "missing.yaml")
    error = caught.value
    assert str(error).endswith(f" [{error.message_code}]")
    assert code_at_end(str(error)) == error.message_code
    assert error.text == error.problems[0]
    assert "DPWA" not in error.text


@pytest.mark.parametrize("copied", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_a_copied_error_keeps_its_code(copied):
    error = copied(UserError(CLOSED))
    assert (str(error), error.text) == (CLOSED, "node w1 is closed")
    assert error.message_code == "DPWA-E058"


@pytest.mark.parametrize("copied", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
@pytest.mark.parametrize(
    "error",
    [
        ConfigError(["one [DPWA-E001]", "two [DPWA-E002]"]),
        PeerLost(("w1", "w2"), "w1 and w2 died"),
        LeftBehindError(("w1",), "the others have gone on"),
        VersionError("8", 9),
        JoinTimeoutError("w1: gives up [DPWA-E226]"),
        DescriptorsError("too few [DPWA-E303]"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_comes_from_another_process_as_it_was(error, copied):
    other = copied(error)
    assert (type(other), str(other)) == (type(error), str(error))
    assert vars(other) == vars(error)


def test_a_message_of_another_rank_has_the_code_at_its_end():
    error = UserError(f"rank 1 of the model's process group: {UserError(CLOSED)}")
    assert error.message_code == "DPWA-E058"
    assert error.text == "rank 1 of the model's process group: node w1 is closed"


def test_an_error_that_several_classes_make_has_one_text():
    error = DescriptorsError("too few [DPWA-E303]")
    assert (str(error), error.text) == ("too few [DPWA-E303]", "too few")
    assert error.message_code == "DPWA-E303"


def test_the_exit_code_of_an_error_stays():
    error = JoinTimeoutError(
        "w1: gives up, because no node has admitted it within 3 s: ... [DPWA-E226]"
    )
    assert (error.code, error.message_code) == (3, "DPWA-E226")


@pytest.mark.parametrize("error", [UserError("a plugin's"), UserError(), ProtocolError("a peer's")])
def test_other_messages_have_no_code(error):
    assert str(error) == error.text
    assert error.message_code is None
