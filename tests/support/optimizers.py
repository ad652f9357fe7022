"""Optimizers as users have them that torch does not have: schedule-free ones, fp32 masters."""

import torch


class ScheduleFree(torch.optim.Optimizer):
    """Schedule-free SGD or AdamW, of Defazio et al., 2024 (arXiv:2405.15682).

    The gradient is taken at y = (1 - beta) z + beta x, which the module holds while it trains; what
    it evaluates is x, a mean of all z. As the package of its authors does, it is switched by
    `train()` and `eval()`, keeps z alone, and refuses a step in between.
    """

    def __init__(self, params, lr, beta=0.9, beta2=None):
        super().__init__(params, {"lr": lr, "beta": beta, "k": 0, "train_mode": False})
        self._beta2 = beta2  # `None`: SGD

    def eval(self):
        self._switch(False, lambda beta: 1 - 1 / beta)

    def train(self):
        self._switch(True, lambda beta: 1 - beta)

    @torch.no_grad()
    def _switch(self, trains, weight):
        for group in self.param_groups:
            if group["train_mode"] != trains:
                for parameter in group["params"]:
                    if "z" in self.state[parameter]:
                        parameter.lerp_(self.state[parameter]["z"], weight(group["beta"]))
                group["train_mode"] = trains

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            if not group["train_mode"]:
                raise RuntimeError("not in train mode when step is called")
            group["k"] += 1
            for y in group["params"]:
                state = self.state[y]
                if "z" not in state:
                    state.update(z=y.clone(), square=torch.zeros_like(y))
                z, step = state["z"], y.grad
                if self._beta2 is not None:
                    state["square"].lerp_(y.grad.square(), 1 - self._beta2)
                    bias = 1 - self._beta2 ** group["k"]
                    step = y.grad / (state["square"] / bias).sqrt().add_(1e-8)
                x = y.lerp(z, 1 - 1 / group["beta"])
                z.sub_(step, alpha=group["lr"])
                x.lerp_(z, 1 / group["k"])
                y.copy_(x.lerp(z, 1 - group["beta"]))
