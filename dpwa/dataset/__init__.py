"""Data sets that nodes share: handed out in ranges by `SharedSampler`, or cut up by `shard`."""

from dpwa.dataset.sampler import SharedSampler, shard

__all__ = ["SharedSampler", "shard"]
