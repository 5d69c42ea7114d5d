"""Runs typed commands by the rehearsal's clock: ``python -m tests.simulators.rehearsal.people stop NAME --yes``.

``deploy EXPERIMENT …`` is ``python -m stacks.deploy`` without the CDK, whose command line is only printed, and without
the program that builds its images. ``first-deployment …`` is ``make first-deployment``: its CDK is the rehearsal, which
reads the printed command and writes the exit code to standard input.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.simulators.rehearsal.clock import Clock


def _print_cdk(words: Sequence[str], **_: object) -> int:
    print(shlex.join(["cdk", *words]), flush=True)
    return 0


def _ask_cdk(words: Sequence[str], **_: object) -> int:
    _print_cdk(words)
    return int(sys.stdin.readline())


if __name__ == "__main__":
    # Before any module of runtime/ keeps a reference to the wall clock.
    time.time = Clock.of_this_process().now
    if sys.argv[1] in ("deploy", "first-deployment"):
        from stacks.deploy import command, first_deployment

        command.check_tools = lambda: None
        if sys.argv[1] == "deploy":
            command.run_cdk = _print_cdk
            sys.exit(command.main(sys.argv[2:]))
        command.run_cdk = _ask_cdk
        first_deployment.POLL_S = 1.0
        first_deployment.REPORT = Path(os.environ["FIRST_DEPLOYMENT_REPORT"])
        sys.exit(first_deployment.main(sys.argv[2:]))
    from runtime.cli.main import main

    sys.exit(main())
