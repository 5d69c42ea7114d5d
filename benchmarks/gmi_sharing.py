"""Measures experience sharing: predictions and trained samples per second, multi-channel against uni-channel.

    python -m benchmarks.gmi_sharing [--repeats 5]

The setup follows GMI-DRL's figure 11 and table 8, on the cores of this machine. Serving instances play vectors of
environments and a trainer takes batches, each in its own process. As in training, this process sends small messages:
to a serving instance, which chunk to write, and to the trainer, that the chunk is ready. Contenders:

- ``uni, a step``: the paper's baseline. All fields in one channel, chunk after chunk. A chunk is one step of an
  instance's environments. Nothing is joined.
- ``uni, a chunk``: the same channel, but a chunk is a fragment: many steps of one environment.
- ``multi, a step``: one channel for each field; a chunk is one step.
- ``multi, a chunk``: our design. One channel for each field; a chunk is a fragment.

Each chunk has one message. All contenders have room for the same number of samples, and report free chunks together.
Environment and policy are as small as possible, so that they do not hide the cost of sharing: observations come from a
pool of random ones, and the policy is two small numpy layers that see one pixel in sixteen. With Hopper's shapes, a
trainer makes one pass over its batch with a torch network of two layers of 64: forward, backward, and a step of SGD.
With Atari's shapes it only reads each sample, as the mean of its frames, which are neither deflated nor deduplicated.

Contenders take turns, and ratios are taken within a turn, so that drifts in the machine's speed cancel out. CPU time is
the total of all processes. Prints JSON; keep it under benchmarks/results/.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import select
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import numpy as np  # noqa: E402

from benchmarks.provenance import ROOT, origin  # noqa: E402
from runtime.gmi.sharing.chunks import Batcher, Dispenser  # noqa: E402
from runtime.gmi.sharing.migrator import Migrator  # noqa: E402
from runtime.gmi.sharing.plan import Field, Plan  # noqa: E402

TURN_S = 2.0
SHAPES: dict[str, dict[str, Any]] = {
    "Hopper": {
        "observations": ("float32", (11,)),
        "actions": ("float32", (3,)),
        "environments": 16,
        "fragment_steps": 256,
        "batch": 2048,
    },
    "Atari": {
        "observations": ("uint8", (4, 84, 84)),
        "actions": ("int64", ()),
        "environments": 8,
        "fragment_steps": 64,
        "batch": 256,
    },
}
CONTENDERS = {
    "uni, a step": (True, False),
    "uni, a chunk": (True, True),
    "multi, a step": (False, False),
    "multi, a chunk": (False, True),
}
"""Whether there is one channel, and whether a chunk is a fragment."""
BASELINE, DESIGN = "uni, a step", "multi, a chunk"
TO_PLAY, WORD = struct.Struct("<qq"), struct.Struct("<q")
"""A message to a serving instance: a number, and the chunk to write. Other messages are one number."""


def plan_of(shape: str, contender: str, serving: int) -> Plan:
    case, (is_uni_channel, is_joined) = SHAPES[shape], CONTENDERS[contender]
    rows = case["fragment_steps"] if is_joined else case["environments"]
    by_step = {
        "observations": case["observations"],
        "actions": case["actions"],
        "log_probs": ("float32", ()),
        "rewards": ("float64", ()),
        "terminated": ("bool", ()),
    }
    # Room for two fragments of each environment.
    return Plan(
        {name: Field(*one, rows) for name, one in by_step.items()},
        2 * serving * case["environments"] * case["fragment_steps"] // rows,
        is_uni_channel,
    )


def received(control: int, kind: struct.Struct) -> list[Any]:
    """Returns the available messages. Waits for the first."""
    if not (data := os.read(control, 2**16)):
        raise EOFError
    return list(kind.iter_unpack(data))


def serve(control: int, memory: int, shape: str, plan: Plan) -> None:
    """Plays until the other end is closed."""
    count, steps, random = (
        SHAPES[shape]["environments"],
        SHAPES[shape]["fragment_steps"],
        np.random.default_rng(0),
    )
    observed, stride, brightest = (
        plan.fields["observations"],
        *((16, 255) if shape == "Atari" else (1, 1)),
    )
    pool = (brightest * random.random((16, count, *observed.shape), np.float32)).astype(
        observed.dtype
    )
    inputs = pool.reshape(16, count, -1)[:, :, ::stride] / np.float32(brightest)
    first = random.standard_normal((inputs.shape[-1], 64), np.float32) / 8
    second = random.standard_normal((64, 6 if shape == "Atari" else 3), np.float32) / 8
    always = {
        "log_probs": np.zeros(count, np.float32),
        "rewards": np.ones(count),
        "terminated": np.zeros(count, bool),
    }
    kept = {
        name: np.zeros((count, steps, *one.shape), one.dtype) for name, one in plan.fields.items()
    }
    dispenser, granted, turns = Dispenser(memory, plan), deque[tuple[int, int]](), itertools.count()

    def write(fields: dict[str, np.ndarray]) -> None:
        while not granted:
            granted.extend(received(control, TO_PLAY))
        number, chunk = granted.popleft()
        dispenser.write(chunk, fields)
        os.write(control, WORD.pack(number))

    def step() -> int:
        turn = next(turns)
        outputs = np.tanh(inputs[turn % 16] @ first) @ second
        actions = outputs.argmax(axis=1) if shape == "Atari" else outputs
        played = always | {"observations": pool[turn % 16], "actions": actions}
        if plan.fields["rewards"].rows_max == count:
            write(played)
            return count
        for name, value in played.items():
            kept[name][:, turn % steps] = value
        if turn % steps == steps - 1:
            for one in range(count):
                write({name: array[one] for name, array in kept.items()})
        return count

    count_until_the_end(step)


def train(control: int, memory: int, shape: str, plan: Plan) -> None:
    """Trains until the other end is closed."""
    samples, rows = SHAPES[shape]["batch"], plan.fields["rewards"].rows_max or 0
    if shape == "Hopper":
        import torch

        torch.set_num_threads(1)
        layers = [
            torch.nn.Linear(11, 64),
            torch.nn.Tanh(),
            torch.nn.Linear(64, 64),
            torch.nn.Tanh(),
        ]
        network = torch.nn.Sequential(*layers, torch.nn.Linear(64, 3))
        optimiser = torch.optim.SGD(network.parameters(), 1e-3)
    batcher, told = Batcher(memory, plan), deque[int]()

    def step() -> int:
        while len(told) * rows < samples:
            told.extend(chunk for (chunk,) in received(control, WORD))
        taken = [batcher.take(told.popleft()) for _ in range(samples // rows)]
        batch = {name: np.concatenate([one[name] for one in taken]) for name in plan.fields}
        if shape == "Hopper":
            observed, played = (
                torch.from_numpy(batch[name]) for name in ("observations", "actions")
            )
            optimiser.zero_grad()
            (network(observed) - played).square().mean().backward()
            optimiser.step()
        else:
            batch["observations"].reshape(samples, -1).mean(axis=1, dtype=np.float32)
        os.write(control, WORD.pack(len(taken)))
        return samples

    count_until_the_end(step)


def count_until_the_end(step: Callable[[], int]) -> None:
    """Repeats a step until the other end is closed, and reports the amount done in the requested time."""
    marks, done = [(time.monotonic(), 0, time.process_time())], 0
    with suppress(EOFError, OSError):
        while True:
            done += step()
            marks.append((time.monotonic(), done, time.process_time()))
    times, counts, cpu = zip(*marks, strict=True)
    at = [float(word) for word in sys.stdin.readline().split()]
    print(*(np.diff(np.interp(at, times, values))[0] for values in (counts, cpu)))


def turn(shape: str, contender: str, serving: int) -> dict[str, float]:
    """Runs one contender for a while."""
    plan, numbers, accepted, to_train = (
        plan_of(shape, contender, serving),
        itertools.count(),
        [0] * serving,
        deque(),
    )
    with ExitStack() as stack:
        migrator = stack.enter_context(closing(Migrator(plan)))
        memory, controls, processes = migrator.descriptor, [], []
        for role in ["--serve"] * serving + ["--train"]:
            ours, theirs = socket.socketpair()
            with theirs:
                controls.append(stack.enter_context(ours).fileno())
                processes.append(
                    subprocess.Popen(
                        [
                            sys.executable,
                            "-m",
                            "benchmarks.gmi_sharing",
                            role,
                            f"{theirs.fileno()}",
                            f"{memory}",
                            shape,
                            contender,
                            f"{serving}",
                        ],
                        pass_fds=(theirs.fileno(), memory),
                        cwd=ROOT,
                        text=True,
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                    )
                )

        def grant(one: int, count: int) -> None:
            """Gives a serving instance chunks to write."""
            os.write(
                controls[one],
                b"".join(
                    TO_PLAY.pack(number, migrator.place(f"{number}"))
                    for number in itertools.islice(numbers, count)
                ),
            )

        def hand_on() -> None:
            """Tells the trainer which chunks are ready, and serving instances which are free."""
            for one in map(controls.index, select.select(controls, [], [], 0.05)[0]):
                words = [word for (word,) in received(controls[one], WORD)]
                if one < serving:
                    for number in words:
                        os.write(controls[-1], WORD.pack(migrator.chunk_of(f"{number}")))
                        to_train.append((number, one))
                    accepted[one] += len(words)
                    continue
                trained = [to_train.popleft() for _ in range(sum(words))]
                for number, _ in trained:
                    migrator.release(f"{number}")
                for player, count in Counter(player for _, player in trained).items():
                    grant(player, count)

        for one in range(serving):
            grant(one, plan.chunks // serving)
        # Until then it is the start: an instance may be ahead by a third of it.
        while min(accepted) < 3 * plan.chunks // serving:
            hand_on()
        started_s, cpu_s = time.monotonic(), time.process_time()
        while (ended_s := time.monotonic()) < started_s + TURN_S:
            hand_on()
        cpu_s = time.process_time() - cpu_s
    found = [
        tuple(map(float, one.communicate(f"{started_s} {ended_s}\n")[0].split()))
        for one in processes
    ]
    elapsed_s, counts, cpu_s = (
        ended_s - started_s,
        [count for count, _ in found],
        cpu_s + sum(cpu for _, cpu in found),
    )
    return {
        "predictions_per_s": sum(counts[:-1]) / elapsed_s,
        "trained_per_s": counts[-1] / elapsed_s,
        "cpu_us_per_trained_sample": 1e6 * cpu_s / counts[-1],
    }


def compare(shape: str, serving: int, repeats: int) -> dict[str, Any]:
    """Returns the median, least and greatest of each contender's per-turn ratios to the baseline."""
    turns = [
        {contender: turn(shape, contender, serving) for contender in CONTENDERS}
        for _ in range(repeats)
    ]
    return {
        contender: {
            name: [
                float(f"{of([one[contender][name] / one[BASELINE][name] for one in turns]):.3g}")
                for of in (statistics.median, min, max)
            ]
            for name in turns[0][BASELINE]
        }
        for contender in CONTENDERS
        if contender != BASELINE
    }


if __name__ == "__main__":
    if sys.argv[1:2] in (["--serve"], ["--train"]):
        _, role, *descriptors, name, one, count = sys.argv
        (serve if role == "--serve" else train)(
            *map(int, descriptors), name, plan_of(name, one, int(count))
        )
        raise SystemExit
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    load_before = os.getloadavg()[0]
    results = {
        shape: {
            f"{serving} serving, 1 trainer": compare(shape, serving, given.repeats)
            for serving in (2, 1)
        }
        for shape in SHAPES
    }
    print(
        json.dumps(
            {
                **origin(f"python -m benchmarks.gmi_sharing --repeats {given.repeats}"),
                "load_before": round(load_before, 2),
                "load_after": round(os.getloadavg()[0], 2),
                "turn_s": TURN_S,
                "baseline": BASELINE,
                "design": DESIGN,
                "times the baseline, median least greatest": results,
            },
            indent=2,
        )
    )
