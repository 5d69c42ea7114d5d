
from __future__ import annotations

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from runtime.errors import RunError


class InstanceGroup:
    def __init__(self, rank, size, reduction):
        self.rank, self.size, self.reduction = rank, size, reduction
        self.reduce_s = self.waited_s = 0.0
    def sum(self, tensors):
        a = time.monotonic()
        with torch.no_grad():
            for t in tensors:
                try:
                    dist.all_reduce(t)
                except RuntimeError as e:
                    raise RunError(str(e)) from e
        self.reduce_s += time.monotonic() - a
    def leave(self):
        dist.destroy_process_group()

def join_group(*, rank, devices, store, name, reduction, timeout_s, device, elements):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=dist.PrefixStore(name, store), rank=rank, world_size=len(devices), timeout=timedelta(seconds=timeout_s))
    return InstanceGroup(rank, len(devices), "flat")
