"""Divide a data set among nodes. `SharedSampler` hands out ranges, `shard` makes fixed parts."""

from dpwa.dataset.sampler import SharedSampler, shard

__all__ = ["SharedSampler", "shard"]
