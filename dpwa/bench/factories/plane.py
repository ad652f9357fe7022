"""Builds the measures of `dpwa bench plane`."""

from __future__ import annotations

import torch

from dpwa.adapters.pytorch import DpwaPyTorchAdapter
from dpwa.bench.factory import MeasureFactory
from dpwa.bench.measures import gloo
from dpwa.bench.measures.bare_zeromq import BareZeroMQ
from dpwa.bench.measures.gossip import OneWay, Round, meet, pause_s
from dpwa.bench.measures.kernels import copy_, lerp_
from dpwa.bench.measures.raw_tcp import RawTcp
from dpwa.bench.measures.timed import Timed, Work
from dpwa.bench.model import FlatModel
from dpwa.bench.plan import PlanePlan
from dpwa.bench.session import GlooGroup, Measure
from dpwa.bench.suites.plane import BARE_ZEROMQ, LINKS, RAW_TCP


class PlaneFactory(MeasureFactory[PlanePlan]):
    """Holds the model and its adapters."""

    def __init__(self, plan: PlanePlan, group: GlooGroup) -> None:
        super().__init__(plan, group)
        self._model = FlatModel(plan.nbytes, plan.tensors, seed=self._rank.index)
        self._scratch = torch.zeros_like(self._model.flat)
        self._adapters: dict[str, DpwaPyTorchAdapter] = {}
        self._raw_tcp: RawTcp | None = None

    def _measure(self, name: str) -> Measure:
        flat, scratch = self._model.flat, self._scratch
        match name:
            case "copy":
                return Timed(name, copy_(flat, scratch), takes_part=self._is_first)
            case "lerp":
                return Timed(name, lerp_(flat, scratch), takes_part=self._is_first)
            case "copy_together":
                return Timed(name, copy_(flat, scratch))
            case "lerp_together":
                return Timed(name, lerp_(flat, scratch))
            case "publish" | "publish_unguarded":
                return Timed(name, self._adapter(name).update_send, takes_part=self._is_first)
            case "gloo_all_reduce":
                return Timed(name, gloo.all_reduce_mean(flat))
            case "gloo_pair":
                return gloo.GlooPairExchange(flat, scratch, self._rank)
            case "raw_tcp_one_way":
                return Timed(name, self._raw_tcp_fetch(), takes_part=self._is_first)
            case "raw_tcp_round":
                return Timed(name, self._raw_tcp_fetch())
            case "bare_zeromq_round":
                return Timed(name, self._bare_zeromq().round)
        return self._gossip(name)

    def _gossip(self, name: str) -> Measure:
        if name == "shm_overlapped":
            return Round(name, self._met("shm"), pause_s(self._plan.nbytes))
        link, _, kind = name.partition("_")
        if kind == "round":
            return Round(name, self._met(link))
        return OneWay(link, self._met(link), self._model, is_first=self._is_first)

    def _adapter(self, link: str) -> DpwaPyTorchAdapter:
        if link not in self._adapters:
            config = self._plan.config(link, LINKS[link])
            adapter = DpwaPyTorchAdapter(self._model.module, self._rank.name, config)
            self._adapters[link] = self._open.enter_context(adapter)
        return self._adapters[link]

    def _met(self, link: str) -> DpwaPyTorchAdapter:
        """Return an adapter whose peers all listen and have published."""
        is_new = link not in self._adapters
        adapter = self._adapter(link)
        if is_new:
            meet(adapter)
            self._group.barrier()
        return adapter

    def _raw_tcp_fetch(self) -> Work:
        if self._raw_tcp is None:
            raw_tcp = RawTcp(self._model.flat, self._scratch, self._rank, self._addresses(RAW_TCP))
            self._raw_tcp = self._open.enter_context(raw_tcp)
            self._group.barrier()
            raw_tcp.connect()
        return self._raw_tcp.fetch_and_merge

    def _bare_zeromq(self) -> BareZeroMQ:
        bare = BareZeroMQ(self._model.flat, self._rank, self._addresses(BARE_ZEROMQ))
        self._open.enter_context(bare)
        self._group.barrier()
        bare.connect()
        bare.publish()
        self._group.barrier()
        return bare

    def _addresses(self, name: str) -> list[tuple[str, int]]:
        return list(zip(self._plan.hosts, self._plan.ports[name], strict=True))
