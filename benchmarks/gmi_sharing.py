"""Experience sharing: predictions and trained samples a second, multi-channel beside uni-channel.

    python benchmarks/gmi_sharing.py [--repeats 5]

The shape of GMI-DRL's figure 11 and table 8, on the cores of this machine. Serving instances play vectors of
environments, trainers take batches; each is a process of its own, and the migrator runs in this one. Contenders:

- ``uni, a step``: the paper's baseline. All fields in one channel, sample after sample; one message for each step of an
  instance's environments, nothing is joined.
- ``uni, a chunk``: the same channel, but one message for many steps.
- ``multi, a step``: one channel for each field; one message for each step.
- ``multi, a chunk``: the design. One channel for each field, many steps to a message.

All have room for as many samples. Environment and policy are as small as can be, so that they do not hide what sharing
costs: observations come from a pool of random ones, and the policy is two small layers in numpy; of pixels it sees one
in sixteen. With Hopper's shapes a trainer makes one pass of a torch network with two layers of 64 over its batch,
forward, backward, and a step of SGD. With Atari's it only touches each sample: the mean of its frames.

Contenders take turns, so that a machine whose speed drifts does not decide: ratios are of one turn. CPU time is that of
all processes. Prints JSON; keep it under benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from benchmarks.provenance import origin  # noqa: E402
from runtime.gmi.sharing.batcher import Batcher  # noqa: E402
from runtime.gmi.sharing.control import SharingError  # noqa: E402
from runtime.gmi.sharing.dispenser import Dispenser  # noqa: E402
from runtime.gmi.sharing.migrator import Migrator  # noqa: E402
from runtime.gmi.sharing.plan import Field, Plan  # noqa: E402

TURN_S, PATIENCE_S = 2.0, 60.0
BY_STEP = {"log_probs": Field("float32"), "rewards": Field("float64"), "terminated": Field("bool"),
           "bootstrap_mask": Field("bool")}
SHAPES: dict[str, dict[str, Any]] = {
    "Hopper": {"fields": {"observations": Field("float32", (11,)), "actions": Field("float32", (3,)), **BY_STEP},
               "environments": 16, "chunk_steps": 64, "batch": 2048},
    "Atari": {"fields": {"observations": Field("uint8", (4, 84, 84)), "actions": Field("int64"), **BY_STEP},
              "environments": 8, "chunk_steps": 16, "batch": 256},
}
CHUNKS = 8
"""That an agent may be ahead; of one step each, as many more."""
CONTENDERS = {"uni, a step": (True, False), "uni, a chunk": (True, True), "multi, a step": (False, False),
              "multi, a chunk": (False, True)}
"""Whether there is one channel, and whether steps are joined."""
BASELINE, DESIGN = "uni, a step", "multi, a chunk"
INSTANCES = {"2 serving, 1 trainer": 2, "1 serving, 1 trainer": 1}


def plan_of(shape: str, contender: str, agents: int) -> Plan:
    case, (is_uni_channel, is_joined) = SHAPES[shape], CONTENDERS[contender]
    steps = case["chunk_steps"] if is_joined else 1
    return Plan(case["fields"], agents, steps * case["environments"], CHUNKS * case["chunk_steps"] // steps,
                is_uni_channel)


def serve(control_fd: int, shape: str, plan: Plan) -> None:
    """Plays until the migrator is gone."""
    count, random = SHAPES[shape]["environments"], np.random.default_rng(0)
    is_pixels = shape == "Atari"
    observed = plan.fields["observations"]
    pool = (random.integers(0, 256, (16, count, *observed.shape), np.uint8) if is_pixels
            else random.standard_normal((16, count, *observed.shape), np.float32))
    inputs = pool[:, :, :, ::4, ::4].reshape(16, count, -1) / np.float32(255) if is_pixels else pool
    first = random.standard_normal((inputs.shape[-1], 64), np.float32) / 8
    second = random.standard_normal((64, 6 if is_pixels else 3), np.float32) / 8
    rewards, never, zeros = np.ones(count), np.zeros(count, np.bool_), np.zeros(count, np.float32)
    dispenser, sequence = Dispenser(control_fd, plan), 0

    def step() -> int:
        nonlocal sequence
        place = sequence // count % len(pool)
        outputs = np.tanh(inputs[place] @ first) @ second
        actions = outputs.argmax(axis=1) if is_pixels else outputs
        dispenser.write({"observations": pool[place], "actions": actions, "log_probs": zeros, "rewards": rewards,
                         "terminated": never, "bootstrap_mask": never}, sequence, timeout_s=PATIENCE_S)
        sequence += count
        return count

    count_until_the_end(step)


def train(control_fd: int, shape: str, plan: Plan) -> None:
    """Trains until the migrator is gone."""
    samples = SHAPES[shape]["batch"]
    touch: Callable[[np.ndarray, np.ndarray], Any]
    if shape == "Atari":
        def touch(observations: np.ndarray, actions: np.ndarray) -> Any:
            return observations.reshape(samples, -1).mean(axis=1, dtype=np.float32)
    else:
        import torch

        torch.set_num_threads(1)
        network = torch.nn.Sequential(torch.nn.Linear(11, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64),
                                      torch.nn.Tanh(), torch.nn.Linear(64, 3))
        optimiser = torch.optim.SGD(network.parameters(), 1e-3)

        def touch(observations: np.ndarray, actions: np.ndarray) -> Any:
            optimiser.zero_grad()
            (network(torch.from_numpy(observations)) - torch.from_numpy(actions)).square().mean().backward()
            optimiser.step()

    batcher = Batcher(control_fd, plan, samples)

    def step() -> int:
        batch = batcher.take(PATIENCE_S)
        assert batch is not None
        touch(batch.fields["observations"], batch.fields["actions"])
        return samples

    count_until_the_end(step)


def count_until_the_end(step: Callable[[], int]) -> None:
    """Repeats a step until the migrator is gone; then tells how much was done in the time that it is asked about."""
    marks, done = [(time.monotonic(), 0, time.process_time())], 0
    with suppress(SharingError):
        while True:
            done += step()
            marks.append((time.monotonic(), done, time.process_time()))
    times, counts, cpu = zip(*marks, strict=True)
    at = [float(word) for word in sys.stdin.readline().split()]
    print(*(np.diff(np.interp(at, times, values))[0] for values in (counts, cpu)))


def turn(shape: str, contender: str, agents: int) -> dict[str, float]:
    """Runs one contender for a while."""
    plan = plan_of(shape, contender, agents)
    with closing(Migrator(plan)) as migrator:
        processes = []
        for role, number in [("--serve", number) for number in range(agents)] + [("--train", 0)]:
            with migrator.add_agent(number) if role == "--serve" else migrator.add_trainer(number) as control:
                processes.append(subprocess.Popen(
                    [sys.executable, __file__, role, str(control.fileno()), shape, contender, str(agents)], text=True,
                    pass_fds=(control.fileno(),), stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        # What lies before is the start: an agent's memory alone holds as much.
        goal = 3 * plan.chunks * plan.chunk_samples
        while min(migrator.accepted) < goal:
            migrator.step(PATIENCE_S)
        started_s, cpu_s = time.monotonic(), time.process_time()
        while (ended_s := time.monotonic()) < started_s + TURN_S:
            migrator.step(0.05)
        cpu_s = time.process_time() - cpu_s
    found = [tuple(map(float, process.communicate(f"{started_s} {ended_s}\n")[0].split())) for process in processes]
    elapsed_s, trained = ended_s - started_s, found[-1][0]
    return {"predictions_per_s": sum(count for count, _ in found[:-1]) / elapsed_s,
            "trained_per_s": trained / elapsed_s,
            "cpu_us_per_trained_sample": 1e6 * (cpu_s + sum(cpu for _, cpu in found)) / trained}


def compare(shape: str, agents: int, repeats: int) -> dict[str, Any]:
    """Medians of each contender, and of the ratios to the baseline with the least and the greatest."""
    turns = [{contender: turn(shape, contender, agents) for contender in CONTENDERS} for _ in range(repeats)]
    names = list(turns[0][BASELINE])

    def ratios(contender: str, name: str) -> list[float]:
        found = [one[contender][name] / one[BASELINE][name] for one in turns]
        return [rounded(statistics.median(found)), rounded(min(found)), rounded(max(found))]

    return {"medians": {contender: {name: rounded(statistics.median(one[contender][name] for one in turns))
                                    for name in names} for contender in CONTENDERS},
            "times the baseline, median least greatest": {
                contender: {name: ratios(contender, name) for name in names}
                for contender in CONTENDERS if contender != BASELINE}}


def rounded(value: float) -> float:
    return float(f"{value:.3g}")


if __name__ == "__main__":
    if sys.argv[1:2] in (["--serve"], ["--train"]):
        _, role, descriptor, name, one, playing = sys.argv
        (serve if role == "--serve" else train)(int(descriptor), name, plan_of(name, one, int(playing)))
        raise SystemExit
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    load_before = os.getloadavg()[0]
    results = {shape: {name: compare(shape, agents, given.repeats) for name, agents in INSTANCES.items()}
               for shape in SHAPES}
    print(json.dumps({
        **origin("python benchmarks/gmi_sharing.py"), "load_before": round(load_before, 2),
        "load_after": round(os.getloadavg()[0], 2), "repeats": given.repeats, "turn_s": TURN_S,
        "baseline": BASELINE, "design": DESIGN, "results": results}, indent=2))
