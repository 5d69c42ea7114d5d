"""Writes papers/README.md and its pictures: ``python -m papers``. With ``--check``, only says what is stale.

The page has a row for each figure and table of the four papers: the claim, our estimate, and the verdict.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from papers.page import Page
from papers.pictures import draw


def main() -> int:
    """Returns 1 if the page cannot be written, or is stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if anything is stale"
    )
    parser.add_argument(
        "--folder", type=Path, default=Path(__file__).parent, help="default: papers"
    )
    options = parser.parse_args()
    page = Page.of(options.folder)
    if not options.check and not any(page.wrong_claims()):
        page.path.write_text(page.text())
        for name, paper in page.protocol["papers"].items():
            if "picture" in paper:
                draw(page.results, paper["picture"], page.picture(name))
    problems = list(page.problems())
    for problem in problems:
        print(problem, file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
