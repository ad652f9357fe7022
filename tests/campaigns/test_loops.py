"""Loops of a few shapes beside one process; `./scripts/test --long loops` has all."""

import loops
import pytest

FEW = {
    "last_pass_not_synchronized": (2, "tcp"),
    "gan_with_toggled_parameters": (2, "tcp"),
    "clamped_to_new_gradients": (3, "tcp"),
    "private_gradients_that_are_found_out": (2, "auto"),
    "closures_that_assign_gradients": (2, "auto"),
    "a_pass_that_fails": (3, "tcp"),
    "a_buffer_that_one_node_has_loaded": (3, "auto"),
}
SLOW = {
    "hooks_that_are_called_after_others": (2, "tcp"),
    "all_within_passes_within_a_pass": (2, "auto"),
    "two_steps_by_hand_that_are_clipped": (2, "auto"),
    "added_in_the_middle": (2, "auto"),
    "unfrozen_in_the_middle": (2, "auto"),
    "attached": (2, "auto"),
    "two_passes_over_a_shared_trunk_then_clipped": (2, "tcp"),
    "averaged_at_the_steps_of_two_optimizers": (2, "tcp"),
    "scaled_with_parameters_that_are_not_used": (2, "auto"),
    "used_twice_within_passes_within_a_pass": (2, "tcp"),
    "frozen_in_the_middle": (2, "auto"),
    "a_function_in_a_group": (2, "auto"),
    "optimizers_for_other_devices": (2, "auto"),
}


pytestmark = pytest.mark.filterwarnings(
    "ignore:None of the inputs have requires_grad",
    "ignore:Using backward.. with create_graph",
    "ignore:.torch.jit.script_method. is deprecated:DeprecationWarning",
)


@pytest.mark.parametrize(
    ("name", "nodes", "transport"),
    [
        *((name, *case) for name, case in FEW.items()),
        *(pytest.param(name, *case, marks=pytest.mark.slow) for name, case in SLOW.items()),
    ],
)
def test_a_loop_is_as_in_one_process_on_all_batches(name, nodes, transport):
    assert loops.difference(name, nodes, transport, seed=5) < loops.MAX_APART


def test_gradients_in_the_same_memory_are_averaged_once():
    name, bucket_bytes = "gradients_that_share_memory", 2**20  # both are in one bucket
    assert loops.difference(name, 3, "tcp", 4, bucket_bytes) < loops.MAX_APART


@pytest.mark.parametrize(
    "name", ["sharpness_aware_with_an_ascent_of_each_node", "weights_with_noise_of_each_node"]
)
def test_weights_that_a_node_takes_back_before_the_step_are_no_difference(name, caplog):
    assert loops.difference(name, seed=4) < loops.MAX_APART
    assert "parameters differ" not in caplog.text
