"""Optimizers that keep their state in each form that users' optimizers have."""

from collections import defaultdict, deque

import torch


class Momentum(torch.optim.Optimizer):
    """What the others have in common: how a step uses the sum of gradients."""

    def __init__(self, params, lr=0.05):
        super().__init__(params, {"lr": lr})

    def parameters(self):
        return [p for group in self.param_groups for p in group["params"] if p.grad is not None]

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.parameters():
            parameter.sub_(self.direction(parameter), alpha=self.param_groups[0]["lr"])


class StringKeys(Momentum):
    """Entries that are not of a parameter: a count, and a mean by name."""

    def direction(self, parameter):
        shared = self.state["everything"]
        shared["count"] = shared.get("count", 0) + 1
        name = f"mean {tuple(parameter.shape)}"
        mean = self.state["means"].setdefault(name, torch.zeros(()))
        mean.mul_(0.9).add_(parameter.grad.mean())
        return parameter.grad * (1 + mean) / shared["count"]


class Nested(Momentum):
    """Lists and mappings of tensors, as Shampoo and GaLore have."""

    def direction(self, parameter):
        state = self.state[parameter]
        if not state:
            state["factors"] = [torch.eye(n) for n in parameter.shape]
            state["moments"] = {"first": torch.zeros_like(parameter), 2: (0, None)}
            state["recent"] = deque(maxlen=3)
            state["dtype.kept"] = torch.zeros(2, dtype=torch.int64)
        matrix = parameter.grad.reshape(parameter.shape[0], -1)
        state["factors"][0].mul_(0.9).add_(matrix @ matrix.T)
        state["moments"]["first"].mul_(0.9).add_(parameter.grad)
        state["moments"][2] = (state["moments"][2][0] + 1, None)
        state["recent"].append(parameter.grad.norm().item())
        state["dtype.kept"] += 1
        scale = state["factors"][0].trace() + sum(state["recent"]) + state["dtype.kept"][0]
        return state["moments"]["first"] * state["moments"][2][0] / (1 + scale)


class OnItself(Momentum):
    """Attributes, some of which are made by the first step: by place, by parameter, by its id."""

    def __init__(self, params, rank=0):
        super().__init__(params)
        self.rank = rank  # which differs between nodes
        self.count = 0
        self.momenta = [torch.zeros_like(p) for g in self.param_groups for p in g["params"]]
        self.squares, self.sums = {}, defaultdict(float)
        self.generator = torch.Generator().manual_seed(5)

    def step(self, closure=None):
        self.count += 1
        self.scale = getattr(self, "scale", 1.0) * 0.9
        super().step()

    def direction(self, parameter):
        at = [id(p) for g in self.param_groups for p in g["params"]].index(id(parameter))
        square = self.squares.setdefault(parameter, torch.zeros_like(parameter))
        self.sums[id(parameter)] += parameter.grad.sum().item()
        square.add_(parameter.grad.square())
        self.momenta[at].mul_(0.5).add_(parameter.grad)
        noise = torch.randn((), generator=self.generator) * 0.01 + self.sums[id(parameter)] * 0.01
        return self.momenta[at] * self.scale / (1 + square.sqrt()) / self.count + noise


class Helper:
    """What a step makes for a parameter, as GaLore does."""

    def __init__(self, shape):
        self.seen, self.mean = 0, torch.zeros(shape)


class Helped(Momentum):
    """Objects of the optimizer's own module in its state, and one on itself."""

    def __init__(self, params):
        super().__init__(params)
        self.helper = Helper(())

    def direction(self, parameter):
        helper = self.state[parameter].setdefault("helper", None) or Helper(parameter.shape)
        self.state[parameter]["helper"] = helper
        helper.seen += 1
        helper.mean.lerp_(parameter.grad, 0.3)
        self.helper.mean += parameter.grad.sum()
        return helper.mean / helper.seen * (1 + 0.01 * self.helper.mean.tanh())


class Wrapping(torch.optim.Optimizer):
    """Keeps an inner optimizer to itself, and slow weights beside."""

    def __init__(self, base):
        super().__init__(base.param_groups, {})
        self.base, self.param_groups = base, base.param_groups

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter].setdefault("slow", parameter.clone())
        self.base.step()
        for group in self.param_groups:
            group["steps"] = group.get("steps", 0) + 1
            for parameter in group["params"]:
                if group["steps"] % 3 == 0:
                    slow = self.state[parameter]["slow"]
                    parameter.copy_(slow.lerp_(parameter, 0.5))


class Lookahead(torch.optim.Optimizer):
    """As the well-known one: no constructor of torch, and a state dict without `param_groups`."""

    def __init__(self, optimizer):
        self.optimizer, self.param_groups = optimizer, optimizer.param_groups
        self.state, self.fast_state = defaultdict(dict), optimizer.state
        for group in self.param_groups:
            group["counter"] = 0

    @torch.no_grad()
    def step(self, closure=None):
        self.optimizer.step()
        for group in self.param_groups:
            group["counter"] = (group["counter"] + 1) % 2
            for fast in group["params"] if group["counter"] == 0 else ():
                slow = self.state[fast].setdefault("slow", fast.clone())
                fast.copy_(slow.lerp_(fast, 0.6))

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad(set_to_none)

    def state_dict(self):
        slow = {id(key): value for key, value in self.state.items()}
        return {"fast": self.optimizer.state_dict(), "slow": slow}

    def load_state_dict(self, state):
        raise NotImplementedError


class Duck:
    """No optimizer of torch, as LARC: passes on what an inner one has."""

    def __init__(self, optim):
        self.optim, self.scales = optim, {"last": None}

    param_groups = property(lambda self: self.optim.param_groups)
    state = property(lambda self: self.optim.state)

    def zero_grad(self):
        self.optim.zero_grad()

    def state_dict(self):
        return self.optim.state_dict()

    def load_state_dict(self, state):
        self.optim.load_state_dict(state)

    def step(self):
        last = self.scales["last"] or 1.0
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.mul_(last)
        self.scales["last"] = 0.5 * (last + float(parameter.grad.norm().clamp(max=1)))
        self.optim.step()


def adam(net):
    return torch.optim.Adam(net.parameters(), lr=0.02)


FORMS = {
    "string keys": lambda net: StringKeys(net.parameters()),
    "nested": lambda net: Nested(net.parameters()),
    "on itself": lambda net: OnItself(net.parameters()),
    "objects": lambda net: Helped(net.parameters()),
    "inner": lambda net: Wrapping(adam(net)),
    "inner of its own kind": lambda net: Wrapping(OnItself(net.parameters())),
    "lookahead": lambda net: Lookahead(adam(net)),
    "lookahead of nested": lambda net: Lookahead(Nested(net.parameters())),
    "no optimizer of torch": lambda net: Duck(adam(net)),
}
