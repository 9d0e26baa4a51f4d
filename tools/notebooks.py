"""Run notebooks and write what they print and draw into them; no Jupyter is needed.

python tools/notebooks.py docs/tutorials/*.ipynb           # "make notebooks"
python tools/notebooks.py --check docs/tutorials/*.ipynb   # run them, and change nothing
"""

import argparse
import ast
import base64
import contextlib
import io
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt


def run(notebook: dict[str, Any], name: str) -> dict[str, Any]:
    """The same notebook with the outputs of its cells, which are run in order in an empty folder."""
    names: dict[str, Any] = {"__name__": "__main__"}
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            count = 0
            for cell in notebook["cells"]:
                if cell["cell_type"] == "code":
                    count += 1
                    cell["execution_count"] = count
                    cell["outputs"] = _outputs("".join(cell["source"]), names, f"{name}, cell {count}", count)
        finally:
            os.chdir(here)
    return notebook


def _outputs(code: str, names: dict[str, Any], where: str, count: int) -> list[dict[str, Any]]:
    """What a cell prints, the value of its last line, and its figures."""
    tree, value, printed = ast.parse(code), None, io.StringIO()
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, where, "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), where, "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": _lines(printed.getvalue())})
    figures = [plt.figure(number) for number in plt.get_fignums()]
    if value is not None and not figures:
        data = {"text/plain": _lines(repr(value))}
        outputs.append(
            {"output_type": "execute_result", "execution_count": count, "data": data, "metadata": {}}
        )
    for figure in figures:
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=110, metadata={"Software": None})
        titles = [axes.get_title(loc="left") or axes.get_title() for axes in figure.axes]
        data = {"image/png": base64.b64encode(file.getvalue()).decode(), "text/plain": ["; ".join(titles)]}
        outputs.append({"output_type": "display_data", "data": data, "metadata": {}})
    plt.close("all")
    return outputs


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("notebooks", nargs="+", type=Path)
    parser.add_argument("--check", action="store_true", help="write nothing")
    given = parser.parse_args()
    for path in given.notebooks:
        done = run(json.loads(path.read_text()), path.name)
        if not given.check:
            path.write_text(json.dumps(done, indent=1, ensure_ascii=False) + "\n")
        print(f"{path.name} runs")


if __name__ == "__main__":
    main()
