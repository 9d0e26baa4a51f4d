"""What the site adds to the documents; ``make docs`` itself is strict."""

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("mkdocs")
pytest.importorskip("griffe")
ROOT = Path(__file__).parent.parent


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pages, docstrings = load("site_pages"), load("site_docstrings")


@pytest.mark.parametrize(
    ("target", "source", "place", "there"),
    [
        ("../results/bench.md", "docs/speed.md", "speed.md", "results/bench.md"),
        ("../../results/bench.md", "docs/results/index.md", "results/index.md", "bench.md"),
        ("docs/speed.md", "CONTRIBUTING.md", "contributing.md", "speed.md"),
        ("../docs/speed.md", "results/bench.md", "results/bench.md", "../speed.md"),
        ("fade.md", "docs/concepts/index.md", "concepts/index.md", "fade.md"),
    ],
)
def test_links_of_the_repository_become_links_of_the_site(target, source, place, there):
    assert pages._link(target, source, place) == there


def test_a_notebook_becomes_a_page():
    outputs = [
        {"output_type": "stream", "text": ["2\n"]},
        {"data": {"image/png": "QQ==", "text/plain": ["a curve"]}},
    ]
    cells = [
        {"cell_type": "markdown", "source": ["See [that](other.ipynb)"]},
        {"cell_type": "code", "source": ["print(2)"], "outputs": outputs},
    ]
    assert pages.page_of({"cells": cells}).split("\n\n") == [
        "See [that](other.md)",
        "```python\nprint(2)\n```",
        '```text title="output"\n2\n```',
        "![a curve](data:image/png;base64,QQ==)",
    ]


def test_docstrings_become_markdown():
    text = "Of :class:`Masks`, :func:`fadeout.compact`.\n\n    ``a = b``\n\n>>> f()\n1\n\n>>> g()\n2\n\nEnd."
    assert docstrings.as_markdown(text).split("\n\n") == [
        "Of `Masks`, [`fadeout.compact`][].",
        "``a = b``",
        "```pycon\n>>> f()\n1",
        ">>> g()\n2\n```",
        "End.",
    ]
