"""Runs the cells of the notebooks in docs, and writes their outputs into them.

Needs no Jupyter: the cells are plain Python, and what they leave is their text, the value of their last expression, and
the figures that they draw.
"""

import ast
import base64
import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = (ROOT / "docs" / "quickstart.ipynb", ROOT / "docs" / "actor_pool.ipynb")


def run_cells(notebook: dict[str, Any]) -> dict[str, Any]:
    """Runs the code cells one after the other, in the working directory.

    Args:
        notebook: In nbformat 4; the outputs of its code cells are replaced.

    Returns:
        The variables that the cells leave.
    """
    variables: dict[str, Any] = {"__name__": "__main__"}
    code_cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(code_cells, 1):
        cell["execution_count"], cell["outputs"] = (
            number,
            _run("".join(cell["source"]), number, variables),
        )
    return variables


def _run(source: str, number: int, variables: dict[str, Any]) -> list[dict[str, Any]]:
    body = ast.parse(source, f"cell {number}").body
    # A semicolon at the end hides the value, as in Jupyter.
    last = body.pop() if isinstance(body[-1], ast.Expr) and not source.endswith(";") else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body, []), f"cell {number}", "exec"), variables)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), variables)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append(
            {"name": "stdout", "output_type": "stream", "text": _lines(printed.getvalue())}
        )
    if value is not None:
        outputs.append(
            {
                "data": {"text/plain": _lines(repr(value))},
                "execution_count": number,
                "metadata": {},
                "output_type": "execute_result",
            }
        )
    return outputs + _figures()


def _figures() -> list[dict[str, Any]]:
    """Returns outputs of a cell for its open figures, which are closed."""
    if "matplotlib.pyplot" not in sys.modules:
        return []
    import matplotlib.pyplot as plt

    outputs = []
    for number in plt.get_fignums():
        png = io.BytesIO()
        plt.figure(number).savefig(
            png, format="png", bbox_inches="tight", metadata={"Software": None}
        )
        outputs.append(
            {
                "data": {"image/png": base64.b64encode(png.getvalue()).decode() + "\n"},
                "metadata": {},
                "output_type": "display_data",
            }
        )
    plt.close("all")
    return outputs


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


if __name__ == "__main__":
    os.environ["MPLBACKEND"] = "agg"
    # As Jupyter has it, which runs a notebook in its folder.
    sys.path[:0] = [str(ROOT), str(ROOT / "docs")]
    for path in NOTEBOOKS:
        document = json.loads(path.read_text())
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            run_cells(document)
        path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
