"""``python -m stacks.deploy``."""

from stacks.deploy.command import main

raise SystemExit(main())
