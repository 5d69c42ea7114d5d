"""What the CDK runs: one experiment file in, its stacks out.

python -m stacks.deploy.cdk deploy --all -c experiment=experiments/hopper.yaml
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from runtime.errors import ExperimentError
from stacks.assembly import make_app


def main() -> int:
    """Synthesises the app; 1 where the experiment cannot be deployed."""
    settings = json.loads(Path(__file__).with_name("cdk.json").read_text())
    try:
        app = make_app(settings["context"])
    except ExperimentError as error:
        print(error, file=sys.stderr)
        return 1
    app.synth()
    return 0


if __name__ == "__main__":
    sys.exit(main())
