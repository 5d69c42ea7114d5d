"""The script of the job page starts and resumes a run, under SLURM's signals and as Kubernetes calls it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import yaml

from tests.helpers import PATIENCE_S, ROOT, pendulum_file, rounds, summary, wait_for

PAGE = (ROOT / "docs" / "guides" / "jobs.md").read_text()


def block(language: str) -> str:
    (text,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return text


def program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def test_a_job_begins_a_run_and_its_next_one_resumes_it(tmp_path: Path) -> None:
    out = tmp_path / "runs" / "hopper"
    file = pendulum_file(
        tmp_path,
        scaler={"kind": "fixed", "actors_fixed": 1, "actors_min": 1},
        stop={"max_rounds": 10_000},
        evaluation={"every_rounds": 0},
    )
    program(tmp_path / "job.sh", block("bash"))
    # SLURM's own commands: the job runs in the foreground, and a requeue leaves a note.
    program(tmp_path / "sbatch", '#!/bin/sh\nSLURM_JOB_ID=7 exec bash "$@"\n')
    program(tmp_path / "scontrol", '#!/bin/sh\necho "$@" >requeued\n')
    variables = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
    }
    command = block("sh").replace("experiments/hopper.yaml", str(file))
    job = subprocess.Popen(
        ["bash", "-c", f"exec env {command}"], cwd=tmp_path, env=variables, start_new_session=True
    )
    try:
        wait_for(lambda: list((out / "checkpoints").glob("*.json")), "the first checkpoint")
        job.send_signal(signal.SIGUSR1)
        assert job.wait(PATIENCE_S) == 128 + signal.SIGTERM
    finally:
        job.kill()
    assert (tmp_path / "requeued").read_text() == "requeue 7\n"
    assert summary(out)["stop_reason"] == "interrupted"
    finished = len(rounds(out))

    job_spec = yaml.safe_load(block("yaml"))["spec"]
    (container,) = job_spec["template"]["spec"]["containers"]
    values = {entry["name"]: entry["value"] for entry in container["env"]}
    assert {Path(value).name for value in values.values()} == {"hopper.yaml", "hopper"}
    limited = file.read_text().replace("10000", str(finished + 1))
    file.write_text(limited)
    path = container["command"][1].replace("/runs", str(tmp_path))
    for _ in range(2):
        # The second pod finds a run that has ended.
        subprocess.run(
            [container["command"][0], path],
            cwd=tmp_path,
            env={**variables, "FILE": str(file), "OUT": str(out)},
            timeout=PATIENCE_S,
            check=True,
        )
    assert [row["round_index"] for row in rounds(out)] == list(range(1, finished + 2))
