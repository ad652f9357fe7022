"""A small, fixed part of the campaign of pairs, and what its table says."""

import re

import pairs
import pytest
import torch

CELLS = [
    "together late adamw",
    "gossip accumulate tied three",
    "push_sum attach float64",
    "AllReduceSGD tcp batch_norm",
]
MORE_CELLS = [
    "elastic collectives",
    "noloco bfloat16 sampler",
    "symmetric wrapped scheduler",
    "together unfreeze scheduler",
    "together clip scaler two_optimizers",
    "together robust",
    "gossip schedule_free",
    "lsgd step sparse",
    "local batch_norm autocast",
    "gossip join attach",
    "EASGD join",
]


@pytest.mark.parametrize(
    "cell", [*CELLS, *(pytest.param(cell, marks=pytest.mark.slow) for cell in MORE_CELLS)]
)
def test_a_cell_of_the_campaign_is_what_its_list_says(cell):
    algorithm, *features = cell.split()
    verdict = pairs.held_against(pairs.play(algorithm, tuple(features)), algorithm, features)
    assert verdict.kind in {"right", "refused"}, verdict.text


def scaled_once(driver, step):
    """Scale the weights of the second node before the last step."""
    if driver.index == 1 and step == 38:
        with torch.no_grad():
            driver.training.net.head.weight.mul_(1.01)


def scaled_at_the_end(driver, step):
    """Have the second node scale a layer in its `finish`."""
    if driver.index == 1 and step == 39:
        end = driver.finish
        driver.finish = lambda: (end(), driver.training.net.head.bias.data.mul_(1.1))


WRONG = [
    ("gossip", pairs.setting(fetch_probability=0.0), "nothing was merged"),
    ("together", pairs.extra(scaled_once), "apart after step 39"),
]
WRONG_AS_WELL = [
    ("gossip freeze", pairs.extra(scaled_at_the_end), "frozen layer has changed"),
    ("elastic", pairs.extra(scaled_at_the_end), "w2 ends .* apart from w1"),
    ("together", pairs.attribute(skips=lambda step: step % 9 == 5), "after step 6 .* mean of"),
    ("AllReduceSGD", pairs.attribute(micro=2), "from training on the mean of gradients"),
    ("noloco robust", pairs.extra(scaled_at_the_end), "w2 ends .* apart from w1"),
    ("lsgd freeze", pairs.attribute(skips=lambda step: step > 3), "with a loss of"),
]


@pytest.mark.parametrize(
    ("cell", "spoil", "found"),
    [*WRONG, *(pytest.param(*each, marks=pytest.mark.slow) for each in WRONG_AS_WELL)],
)
def test_the_campaign_finds_what_is_wrong_on_purpose(cell, spoil, found):
    algorithm, *features = cell.split()
    verdict = pairs.play(algorithm, tuple(features) or ("plain",), spoil=spoil)
    assert pairs.held_against(verdict, algorithm, features).kind == "finding"
    assert re.search(found, verdict.text), verdict.text


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["kill", "kill_checkpoint", "stop", "terminate"])
@pytest.mark.parametrize("algorithm", ["gossip", "together"])
def test_a_cell_of_processes_is_right(algorithm, fault):
    verdict = pairs.play(algorithm, (fault, "adamw"))
    assert verdict.kind == "right", verdict.text


@pytest.mark.slow
@pytest.mark.parametrize(
    "cell",
    [
        *("EASGD kill", "local spare", "noloco ddp tcp", "elastic fsdp adamw", "together ddp"),
        *("together accelerate", "push_sum lightning", "lsgd trainer"),
    ],
)
def test_a_cell_whose_nodes_are_more_than_a_loop_is_what_its_list_says(cell):
    algorithm, *features = cell.split()
    verdict = pairs.held_against(pairs.play(algorithm, tuple(features)), algorithm, features)
    if verdict.kind == "skipped":
        pytest.skip(verdict.text)
    assert verdict.kind in {"right", "refused"}, verdict.text


def test_the_page_has_the_table_of_the_campaign():
    page = pairs.PAGE.read_text(encoding="utf-8")
    assert page == pairs.page_with_table(page), "run python tests/campaigns/pairs.py --table"


def test_a_seed_draws_the_same_cells_again():
    assert list(pairs.drawn(20, 3)) == list(pairs.drawn(20, 3)) != list(pairs.drawn(20, 4))
