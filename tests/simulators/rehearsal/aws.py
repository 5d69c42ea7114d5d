"""An instance's aws command line, whose calls to AWS are recorded: ``python -m tests.simulators.rehearsal.aws``."""

from __future__ import annotations

import sys

from awscli.clidriver import main

from tests.simulators.rehearsal.recording import record_calls

if __name__ == "__main__":
    record_calls("boot script")
    sys.argv[0] = "aws"
    sys.exit(main())
