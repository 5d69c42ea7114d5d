"""Runs typed commands by the rehearsal's clock: ``python -m tests.simulators.rehearsal.people stop NAME --yes``.

``deploy EXPERIMENT …`` is ``python -m stacks.deploy`` without the CDK, whose command line is only printed, and without
the program that builds its images.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence

from tests.simulators.rehearsal.clock import Clock


def _print_cdk(words: Sequence[str], **_: object) -> int:
    print(shlex.join(["cdk", *words]), flush=True)
    return 0


if __name__ == "__main__":
    # Before any module of runtime/ keeps a reference to the wall clock.
    time.time = Clock.of_this_process().now
    if sys.argv[1] == "deploy":
        from stacks.deploy import command as deploy

        deploy.run_cdk = _print_cdk
        deploy.check_tools = lambda _: ""
        sys.exit(deploy.main(sys.argv[2:]))
    from runtime.cli.main import main

    sys.exit(main())
