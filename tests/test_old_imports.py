"""The modules of 2017: what still works, and what says where it has gone."""

import importlib
import subprocess
import sys

import pytest

import dpwa.dataset
from dpwa import DpwaConnection


def test_the_only_import_path_of_2017_works_and_names_the_new_one():
    sys.modules.pop("dpwa.dpwa", None)
    with pytest.warns(DeprecationWarning, match="from dpwa import DpwaConnection") as caught:
        old = importlib.import_module("dpwa.dpwa")
    assert old.DpwaConnection is DpwaConnection
    assert len(caught) == 1


def test_what_shares_a_data_set_has_its_first_home_too():
    from dpwa.data import SharedSampler, shard

    assert SharedSampler is dpwa.dataset.SharedSampler
    assert shard is dpwa.dataset.shard


def test_the_warning_points_at_the_line_of_the_user(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import sys\nfrom dpwa.dpwa import DpwaConnection\nassert DpwaConnection\n")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert f"{script}:2: DeprecationWarning: dpwa.dpwa is an old name, from 2017" in done.stderr


@pytest.mark.parametrize(
    ("module", "instead"),
    [
        ("conn", "from dpwa import DpwaConnection"),
        ("interpolation", "from dpwa import register_interpolation"),
        ("messaging", "from dpwa import DpwaConnection"),
    ],
)
def test_modules_that_are_gone_say_what_has_their_work_now(module, instead):
    with pytest.raises(
        ModuleNotFoundError, match=rf"dpwa\.{module} was removed.*{instead}"
    ) as refused:
        importlib.import_module(f"dpwa.{module}")
    assert refused.value.name == f"dpwa.{module}"
    assert not hasattr(dpwa, module)
