"""Measures what an ONNX graph adds to an actor's cold start, and that nothing is added without one.

    python benchmarks/actor_start.py [OTHER_CLONE]

A new interpreter imports the handler and serves one invocation of one step in Hopper: with the numpy policy, with the
same policy as an ONNX graph, and with the numpy policy of another clone. They take turns, so that a busy machine slows
all equally. Prints JSON: median CPU seconds, and the medians of each turn's differences and ratios.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.provenance import origin  # noqa: E402
from lambda_actor.environments import make_environment  # noqa: E402
from lambda_actor.inline import to_text  # noqa: E402
from lambda_actor.trial import random_weights  # noqa: E402
from runtime.export.onnx import save_onnx  # noqa: E402
from runtime.export.onnx_policy import OnnxPolicy  # noqa: E402

TURNS = 11
ENVIRONMENT_ID = "Hopper-v5"
_START = "import json, sys; from lambda_actor.handler import handler; handler(json.load(open(sys.argv[1])), None)"


def write_event(path: Path, message: bytes) -> Path:
    path.write_text(
        json.dumps(
            {
                "run_id": "one",
                "cache_url": "",
                "cache_credential": "",
                "cache_ttl_s": 60,
                "stop_digest": "",
                "invocation_id": "one",
                "environment_id": ENVIRONMENT_ID,
                "preprocessing": "auto",
                "truncate_at_fragment": False,
                "fragment_steps": 1,
                "policy_version": 0,
                "seed": 1,
                "round_index": 1,
                "slot": 0,
                "episode_id": "",
                "weights": to_text(message),
                "episode": "",
            }
        )
    )
    return path


def start_s(clone: Path, event: Path) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", _START, str(event)], cwd=clone, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    other = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT
    environment = make_environment(ENVIRONMENT_ID)
    weights = random_weights(environment.spaces)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        save_onnx(place / "policy.onnx", weights, environment, {})
        plain = write_event(place / "plain.json", weights)
        graph = write_event(place / "graph.json", OnnxPolicy(place / "policy.onnx").weights)
        ways = {"numpy": (ROOT, plain), "graph": (ROOT, graph), "other clone": (other, plain)}
        found: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(TURNS + 1):
            for name, (clone, event) in ways.items():
                taken_s = start_s(clone, event)
                # The first one fills the page cache.
                if turn:
                    found[name].append(taken_s)
    print(
        json.dumps(
            {
                "start_cpu_s": {
                    name: round(statistics.median(values), 3) for name, values in found.items()
                },
                **{
                    f"{one} against {other}": {
                        "ratio": round(
                            statistics.median(
                                a / b for a, b in zip(found[one], found[other], strict=True)
                            ),
                            3,
                        ),
                        "difference_s": round(
                            statistics.median(
                                a - b for a, b in zip(found[one], found[other], strict=True)
                            ),
                            3,
                        ),
                    }
                    for one, other in (("graph", "numpy"), ("numpy", "other clone"))
                },
                **origin("python benchmarks/actor_start.py " + " ".join(sys.argv[1:])),
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
