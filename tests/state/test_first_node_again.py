"""The first node of a cluster knows of nobody; others remember it when it is started again."""

import time

import pytest
from support.ports import free_ports
from support.state_donors import ALONE, donor_process, wait_until_training


@pytest.mark.parametrize(
    "pause_s",
    [
        pytest.param(0.0, id="at once"),
        pytest.param(9.0, id="taken for dead", marks=pytest.mark.slow),
    ],
)
def test_it_takes_over_the_state_of_the_others(tmp_path, pause_s):
    address, other = (f"tcp://127.0.0.1:{port}" for port in free_ports(2))
    settings = {**ALONE, "initial_state": "peers", "log_level": "error"}
    first = {**settings, "join": [], "listen": address}
    second = {**settings, "join": [address], "listen": other}
    with donor_process(tmp_path, "w1", first, 1000, "clock") as process:
        assert wait_until_training(process) == 0
        with donor_process(tmp_path, "w2", second, 1000, "clock") as one_more:
            wait_until_training(one_more)
            time.sleep(0.5)
            process.kill()
            time.sleep(pause_s)
            with donor_process(tmp_path, "w1", first, 1000, "clock") as again:
                assert wait_until_training(again) > 10
