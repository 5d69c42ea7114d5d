"""Describes the measured GPU and its load, both from nvidia-smi."""

from __future__ import annotations

import statistics
import subprocess
import threading
import time
from typing import Any

import torch

from runtime.gmi.devices import Machine

_SAMPLING = ("-s", "um", "-d", "1", "-c", "4")
"""Utilization and memory, four times in four seconds."""
_ACTIVITY = ("--gpm-metrics", "2,3")
"""The shares of busy SMs and of their warps. GPUs from Hopper on report them, but not in the first rows."""
_MEASURES = {
    "utilisation_percent": "sm",
    "sm_activity_percent": "smutil",
    "sm_occupancy_percent": "smocc",
}
"""nvidia-smi's columns by our names. Its ``sm`` is the share of the time in which any kernel ran."""
Sample = dict[str, float | None]
"""Value of each of nvidia-smi's columns; None if it is missing."""


def ask(*words: str) -> str:
    """Returns nvidia-smi's output.

    Raises:
        OSError, subprocess.SubprocessError: It is not installed, or fails.
    """
    return subprocess.run(
        ["nvidia-smi", *words], capture_output=True, text=True, timeout=60, check=True
    ).stdout


def about(machine: Machine) -> dict[str, Any]:
    """Returns the head of a result, except for its origin."""
    return {
        "gpu": machine.gpus[0].name,
        "gpu_memory_mib": int(
            ask("--query-gpu=memory.total", "--format=csv,noheader,nounits").split()[0]
        ),
        "driver": ask("--query-gpu=driver_version", "--format=csv,noheader").split()[0],
        "cuda": torch.version.cuda,
        "torch": str(torch.__version__),
    }


def missing(machine: Machine) -> str:
    """Returns the reason why nothing can be measured here; empty if there is a GPU."""
    if not machine.gpus:
        return f"there is no NVIDIA GPU{f' ({machine.problem})' * bool(machine.problem)}"
    return "" if torch.cuda.is_available() else f"torch {torch.__version__} cannot use the GPU"


def parse_samples(answer: str) -> list[Sample]:
    """Parses the output of ``nvidia-smi dmon``, which begins with lines of column names and units."""
    names: list[str] = []
    rows: list[Sample] = []
    for words in filter(None, map(str.split, answer.splitlines())):
        if words[:2] == ["#", "gpu"]:
            names = words[1:]
        elif words[0] != "#":
            rows.append(
                {
                    name: None if word == "-" else float(word)
                    for name, word in zip(names, words, strict=True)
                }
            )
    return rows


class Monitor(threading.Thread):
    """Samples a GPU until it is ended. Without nvidia-smi it records nothing."""

    def __init__(self, gpu: int) -> None:
        """Takes the GPU's number."""
        super().__init__(daemon=True)
        self._gpu, self._ended = str(gpu), threading.Event()
        self._samples: list[tuple[float, float, Sample]] = []
        self.start()

    def run(self) -> None:
        """Samples repeatedly, without the activity of SMs if that is refused."""
        options = [_ACTIVITY, ()]
        while options and not self._ended.is_set():
            began_s = time.monotonic()
            try:
                rows = parse_samples(ask("dmon", "-i", self._gpu, *_SAMPLING, *options[0]))
            except (OSError, subprocess.SubprocessError, ValueError):
                del options[0]
            else:
                self._samples += [(began_s, time.monotonic(), row) for row in rows]

    def end(self, began_s: float, ended_s: float) -> dict[str, float | None]:
        """Ends sampling. Returns the means between two times, and the highest memory."""
        self._ended.set()
        self.join()
        told = {
            column: [
                value
                for began, ended, row in self._samples
                if began >= began_s and ended <= ended_s
                if (value := row.get(column)) is not None
            ]
            for column in (*_MEASURES.values(), "fb")
        }
        return {
            **{
                name: round(statistics.mean(told[column]), 1) if told[column] else None
                for name, column in _MEASURES.items()
            },
            "memory_mib": max(told["fb"], default=None),
        }
