"""Buckets group the gradients of parameters, so that nodes average many gradients as one value."""

from __future__ import annotations

import hashlib

import numpy as np
import torch

from dpwa.data.payload import Payload

SMALL_BYTES = 64 * 2**10  # two copies of a smaller gradient cost less than its own tensor
NARROW = {"fp16": torch.float16, "bf16": torch.bfloat16}  # dtypes of sent gradients, by codec
# A gradient's form: whether it exists, whether it is dense, the number of its sparse dimensions
DENSE, NONE = (1.0, 1.0, 0.0), (0.0, 0.0, 0.0)


class Buckets:
    """Divides parameters into buckets, from last to first, about as the backward pass goes.

    `label` distinguishes these parameters from other parameters of the module. There is at least
    one bucket.
    """

    def __init__(
        self,
        parameters: list[torch.nn.Parameter],
        places: bytes,  # a flag for each parameter of the module: whether it is in `parameters`
        narrow: torch.dtype | None,
        max_bytes: int,  # the maximum size of a bucket, unless one gradient is larger
    ) -> None:
        self.parameters = parameters
        self.buckets = [Bucket(each, narrow) for each in _grouped(parameters, narrow, max_bytes)]
        self.place_of = {
            id(each): place
            for place, bucket in enumerate(self.buckets)
            for each in bucket.parameters
        }
        self.are_on_cpu = all(each.is_cpu for each in parameters)
        shapes = [list(each.shape) for each in parameters]
        digest = hashlib.blake2b(places + repr(shapes).encode(), digest_size=4).hexdigest()
        self.label = f"{len(parameters)} parameters {digest}"


def _grouped(
    parameters: list[torch.nn.Parameter], narrow: torch.dtype | None, max_bytes: int
) -> list[list[torch.nn.Parameter]]:
    groups: list[list[torch.nn.Parameter]] = [[]]
    left = max_bytes
    for parameter in reversed(parameters):
        nbytes = parameter.numel() * travels_as(parameter.dtype, narrow).itemsize
        if nbytes > left and groups[-1]:
            groups.append([])
            left = max_bytes
        groups[-1].append(parameter)
        left -= nbytes
    return groups


class Bucket:
    """Parameters whose gradients are averaged in one round.

    Small gradients of one dtype are copied to one contiguous buffer.
    """

    def __init__(self, parameters: list[torch.nn.Parameter], narrow: torch.dtype | None) -> None:
        self.parameters = parameters
        self.dtypes = [travels_as(each.dtype, narrow) for each in parameters]
        small: dict[torch.dtype, list[int]] = {}
        for index, (each, dtype) in enumerate(zip(parameters, self.dtypes, strict=True)):
            if each.numel() * dtype.itemsize <= SMALL_BYTES:
                small.setdefault(dtype, []).append(index)
        self.flats: list[torch.Tensor] = []
        self.views: dict[int, torch.Tensor] = {}  # views of the buffers, by index of a parameter
        for dtype, indices in small.items():
            self._stand_together(dtype, indices)
        self.large = [index for index in range(len(parameters)) if index not in self.views]

    def _stand_together(self, dtype: torch.dtype, indices: list[int]) -> None:
        own = [self.parameters[index] for index in indices]
        sizes = [each.numel() for each in own]
        flat = torch.empty(sum(sizes), dtype=dtype, device=own[0].device)
        self.flats.append(flat)
        for index, each, view in zip(indices, own, torch.split(flat, sizes), strict=True):
            self.views[index] = view.view(each.shape)


class Gradients:
    """The gradients of a bucket, and buffers of the module, as one value to average.

    A parameter without a gradient contributes zeros. It gets no gradient if no node has one. A
    sparse gradient is sent as a dense one. The average is sparse if no node's gradient is dense.
    With a `narrow` dtype, float32 and float64 gradients are sent in that dtype. The mean is
    computed in float32 and rounded once. A value that is too large for the dtype becomes infinite,
    which a `GradScaler` detects. With `is_copy`, the gradients keep their values until
    `apply_result` replaces them by the mean.
    """

    @torch.no_grad()
    def __init__(self, bucket: Bucket, buffers: list[torch.Tensor], *, is_copy: bool) -> None:
        self._parameters = bucket.parameters
        self._forms = np.full((len(bucket.parameters), 3), DENSE, np.float32)
        self._own = [each.grad for each in bucket.parameters]
        dense = [
            own
            if own is not None and not own.is_sparse and own.is_contiguous()
            else self._dense(index)
            for index, own in enumerate(self._own)
        ]
        self._values = dict(bucket.views)
        views = bucket.views
        _copy([*views.values()], [dense[index] for index in views])
        self._in_place: set[int] = set()  # indices of gradients that the mean overwrites directly
        known: set[int] = set()  # autograd may have given the same memory to several gradients
        for index in bucket.large:
            value = dense[index].detach().to(bucket.dtypes[index])
            if value.data_ptr() == dense[index].data_ptr() and dense[index] is self._own[index]:
                if is_copy or value.data_ptr() in known:
                    value = value.clone()
                else:
                    self._in_place.add(index)
                    known.add(value.data_ptr())
            self._values[index] = value
        large_values = [self._values[index] for index in bucket.large]
        self.payload = Payload([bucket.flats, large_values, self._forms, buffers])

    def _dense(self, index: int) -> torch.Tensor:
        parameter, own = self._parameters[index], self._own[index]
        if own is None:
            self._forms[index] = NONE
            return torch.zeros_like(parameter)
        if own.is_sparse:
            self._forms[index] = 1.0, 0.0, own.sparse_dim()
            return own.to_dense()
        if any(
            size > 1 and not stride for size, stride in zip(own.shape, own.stride(), strict=True)
        ):
            # An expanded gradient, such as that of a sum, has one number in memory. Copy it to
            # write.
            own = parameter.grad = self._own[index] = own.contiguous()
        return own

    @torch.no_grad()
    def apply_result(self) -> None:
        """Set the gradients of the parameters to the averages."""
        self.payload.result()
        for index in np.flatnonzero((self._forms != DENSE).any(1)).tolist():
            self._take_form(index)
        in_place = self._in_place
        copied = [index for index in self._values if index not in in_place]
        own = [self._own[index] for index in copied]
        # Not in pairs, because thousands of new tuples would start the garbage collector.
        _copy(
            [mine for mine in own if mine is not None],
            [self._values[index] for index in copied if self._own[index] is not None],
        )

    def _take_form(self, index: int) -> None:
        """Set a new gradient if the old one is missing or sparse, or if the average is sparse."""
        share, dense, dims = self._forms[index]
        own = self._own[index]
        if own is not None and dense and not own.is_sparse:
            return
        self._own[index] = None
        if share:
            parameter = self._parameters[index]
            value = self._values[index].to(parameter.dtype, copy=True)
            parameter.grad = value if dense else value.to_sparse(round(dims / share))


def _copy(to: list[torch.Tensor], values: list[torch.Tensor]) -> None:
    if to:
        torch._foreach_copy_(to, values)


def travels_as(dtype: torch.dtype, narrow: torch.dtype | None) -> torch.dtype:
    is_wide = dtype in (torch.float32, torch.float64)
    return dtype if narrow is None or not is_wide else narrow
