"""An instance's aws command line, whose calls to AWS are recorded; see `tests.simulators.aws.aws_command`."""

from __future__ import annotations

import sys

from tests.simulators.aws.aws_command import serve
from tests.simulators.rehearsal.recording import record_calls

if __name__ == "__main__":
    serve(sys.argv[1], begin=lambda: record_calls("boot script"))
