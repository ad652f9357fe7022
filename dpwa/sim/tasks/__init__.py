"""What simulated nodes train, vectorised over nodes: one float64 array of shape (N, D).

consensus       nothing: nodes begin apart from each other, and only average
quadratic       a bowl, with noisy gradients; nodes may have bowls of their own
factorisation   a matrix as a product of two small ones
digits          logistic regression or an MLP on scikit-learn's digits
"""

from dpwa.sim.tasks.base import TASKS, TrainingTask, make_task

__all__ = ["TASKS", "TrainingTask", "make_task"]
