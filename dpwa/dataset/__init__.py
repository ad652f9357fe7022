"""Data sets that nodes share. `SharedSampler` hands out ranges, `shard` makes fixed parts."""

from dpwa.dataset.sampler import SharedSampler, shard

__all__ = ["SharedSampler", "shard"]
