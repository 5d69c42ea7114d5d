"""CPUs and memory that this process may use: those of its container or job, not the host's."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
_GROWTH_SHARE = 0.25
"""A process is replaced when it has grown by this share of its part of the memory."""


def cores(mount: Path = _CGROUPS, own: Path = _OWN) -> int:
    """Returns the number of cores, limited by affinity and by CPU quotas, which are rounded up.

    Args:
        mount: Where control groups are mounted, of version 1 or 2.
        own: The file that names this process's.
    """
    limits = [len(os.sched_getaffinity(0))]
    for folder in _groups("cpu", mount, own):
        quota, period = [*_numbers(folder, "cpu.max"), math.inf, math.inf][:2]
        if math.isinf(quota):
            names = "cpu.cfs_quota_us", "cpu.cfs_period_us"
            quota, period = (next(_numbers(folder, name), math.inf) for name in names)
        # Version 1 writes -1 for none.
        if 0 < quota < math.inf and period > 0:
            limits.append(math.ceil(quota / period))
    return min(limits)


def memory_bytes(mount: Path = _CGROUPS, own: Path = _OWN) -> float:
    """Returns the bytes of memory, beyond which the kernel kills; arguments as for `cores`."""
    limits = [float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))]
    for folder in _groups("memory", mount, own):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limits += _numbers(folder, name)
    return min(limits)


def growth_max_bytes(processes: int) -> float:
    """Returns by how many bytes one of some processes may grow before it is replaced."""
    return _GROWTH_SHARE * memory_bytes() / processes


def own_memory_bytes() -> int:
    """Returns the bytes of memory in use by this process; 0 if that is unknown."""
    pages = [*_numbers(Path("/proc/self"), "statm"), 0, 0][1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _groups(controller: str, mount: Path, own: Path) -> Iterator[Path]:
    """Yields the folders of this process's control groups, and of those around them."""
    if not own.exists():
        return
    for line in own.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "" or controller in controllers.split(","):
            top = mount / controller if controllers else mount
            inner = top / path.strip("/")
            yield inner
            # A container may see only the top, under another path.
            yield from (folder for folder in inner.parents if folder.is_relative_to(top))


def _numbers(folder: Path, name: str) -> Iterator[float]:
    """Yields the numbers in a file, without ``max``, which stands for none; nothing if there is no such file."""
    try:
        words = (folder / name).read_text().split()
    except OSError:
        return
    yield from (math.inf if word == "max" else float(word) for word in words)
