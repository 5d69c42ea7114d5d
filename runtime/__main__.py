"""``python -m runtime``."""

import sys

if __name__ == "__main__":
    try:
        from runtime.cli import main

        code = main()
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
