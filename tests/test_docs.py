"""The programs in the documents run as they stand there, and print what they say they print.

The Python blocks of a page are one program. A block that begins with ``# needs PACKAGE`` is one of its own,
skipped where the package is missing; one that begins with ``# torchrun`` runs in two processes.
"""

import os
import pkgutil
import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import support.torchvision_stubs  # noqa: F401  before lightning imports torchvision
import torch
from support.torchrun import torchrun

import fadeout

ROOT = Path(__file__).parent.parent


class Program(NamedTuple):
    page: str
    code: str
    needs: str = ""


def programs(page: Path) -> list[Program]:
    """The programs of a page: that of its plain blocks first."""
    name = str(page.relative_to(ROOT))
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    alone = [b for b in blocks if b.startswith(("# needs ", "# torchrun "))]
    plain = "".join(block for block in blocks if block not in alone)
    parts = [Program(name, plain)] if plain else []
    return parts + [Program(name, b, b.partition("\n")[0].removeprefix("# ")) for b in alone]


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROGRAMS = [program for page in PAGES for program in programs(page)]
HERE = [p for p in PROGRAMS if not p.needs.startswith("torchrun")]
SPREAD = [p for p in PROGRAMS if p.needs.startswith("torchrun")]


def expected(code: str) -> list[str]:
    """What the comments behind the calls of print say."""
    return re.findall(r"^\s*(?:print\(.*\)|\)\))  # (.+)$", code, re.MULTILINE)


def marked(program: Program) -> Any:
    """Slow, where it imports a trainer of others, which takes seconds."""
    is_slow = re.search("needs .*(accelerate|lightning|transformers)", program.needs)
    return pytest.param(program, marks=pytest.mark.slow if is_slow else ())


def test_every_guide_has_a_program():
    pages = {page.name for page in (ROOT / "docs" / "how-to").glob("*.md")} - {"index.md"}
    assert pages == {Path(program.page).name for program in PROGRAMS if "/how-to/" in program.page}


def test_no_program_needs_a_name_that_is_not_public():
    names = {program.page: re.findall(r"\._[^\W_]\w*|import _\w+", program.code) for program in PROGRAMS}
    assert {page: found for page, found in names.items() if found} == {}


def test_every_method_and_every_experiment_of_our_own_is_described():
    from fadeout.experiments.catalogue import EXPERIMENTS
    from fadeout.methods.registry import METHODS

    text = (ROOT / "docs" / "experiments.md").read_text()
    own = [name for name, e in EXPERIMENTS.items() if not re.search(r"\((Table|Figure)s? ", e.title)]
    assert [name for name in (*METHODS, *own) if f"`{name}`" not in text] == []


def test_the_readme_is_short_and_its_links_lead_somewhere():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 120
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if not link.startswith("http")]
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.filterwarnings("default")  # those of the packages that a page needs
@pytest.mark.parametrize("program", [marked(p) for p in HERE], ids=lambda p: f"{p.page} {p.needs}".strip())
def test_program(program, tmp_path, monkeypatch, capsys):
    if program.needs:
        needed = program.needs.removeprefix("needs ")
        try:
            pkgutil.resolve_name(needed)
        except (ImportError, AttributeError) as error:
            pytest.skip(f"{needed} is not here: {error}")
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng():
        exec(compile(program.code, program.page, "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in expected(program.code) if line not in printed] == []


@pytest.mark.slow
@pytest.mark.parametrize("program", SPREAD, ids=lambda p: p.page)
def test_distributed(program, tmp_path):
    (tmp_path / "train.py").write_text(program.code)
    paths = {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        torchrun("train.py"),
        cwd=tmp_path,
        env=os.environ | paths,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Masks(2 parameters, 125 of 1250 weights left)" in done.stdout
    model = fadeout.load(
        tmp_path / "model.safetensors",
        lambda: torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.ReLU(), torch.nn.Linear(50, 5)),
    )
    assert sum(int(p.count_nonzero()) for p in model.parameters() if p.dim() == 2) <= 125


NEXT = (ROOT / "tools" / "site_pages.py").read_text()  # of pages that are also read elsewhere


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda p: str(p.relative_to(ROOT))
)
def test_no_page_without_a_next_step_nor_an_image_without_a_text(page):
    text, name = page.read_text(), page.relative_to(ROOT / "docs").as_posix()
    last = text.rstrip().rpartition("\n\n")[2]
    if f'"{name}": "' not in NEXT:
        assert last.startswith("Next: ")
        assert re.search(r"\]\([\w./#-]+\)", last)
    assert re.findall(r"!\[\s*\]\(|<img(?![^>]*alt=\"[^\"])", text) == []
