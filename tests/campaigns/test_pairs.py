"""A small, fixed part of the campaign of pairs, and what its table says."""

import pairs
import pytest

CELLS = [
    "together clip scaler two_optimizers",
    "together unfreeze scheduler",
    "together late adamw",
    "together robust",
    "gossip accumulate tied three",
    "gossip schedule_free",
    "lsgd step sparse",
    "symmetric wrapped scheduler",
    "push_sum attach float64",
    "noloco bfloat16",
    "local batch_norm autocast",
    "elastic collectives",
    "AllReduceSGD tcp batch_norm",
    "gossip join attach",
    "EASGD join",
]


@pytest.mark.parametrize("cell", CELLS)
def test_a_cell_of_the_campaign_is_what_its_list_says(cell):
    algorithm, *features = cell.split()
    verdict = pairs.held_against(pairs.play(algorithm, tuple(features)), algorithm, features)
    assert verdict.kind in {"right", "refused"}, verdict.text


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["kill", "kill_checkpoint", "stop", "terminate"])
@pytest.mark.parametrize("algorithm", ["gossip", "together"])
def test_a_cell_of_processes_is_right(algorithm, fault):
    verdict = pairs.play(algorithm, (fault, "adamw"))
    assert verdict.kind == "right", verdict.text


def test_the_page_has_the_table_of_the_campaign():
    page = pairs.PAGE.read_text(encoding="utf-8")
    assert page == pairs.page_with_table(page), "run python tests/campaigns/pairs.py --table"


def test_a_seed_draws_the_same_cells_again():
    assert list(pairs.drawn(20, 3)) == list(pairs.drawn(20, 3)) != list(pairs.drawn(20, 4))
