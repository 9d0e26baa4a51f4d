"""What the site shows beside ``docs/``: results, changelog, contributing, and notebooks as pages.

MkDocs calls the functions ``on_*`` (``hooks:`` in ``mkdocs.yml``). A warning fails the build.
"""

import json
import logging
import posixpath
import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
SHIM = "https://unpkg.com/iframe-worker/shim"
log = logging.getLogger("mkdocs.plugins.fadeout")

# From a file of the repository, as GitHub shows it, to where the site has it.
PLACES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "index.md",
    "SECURITY.md": "security.md",
    **{
        path.relative_to(ROOT).as_posix(): path.relative_to(ROOT).as_posix()
        for pattern in ("results/*.md", "results/experiments/*.md", "results/*.svg")
        for path in sorted(ROOT.glob(pattern))
    },
}
NEXT = {
    "changelog.md": "what is [known and open](defaults.md), or back to the [start](index.md).",
    "contributing.md": "the [architecture](architecture.md), with three walks through the code.",
    "architecture.md": "[a method of your own](how-to/own-method.md), or [contributing](contributing.md).",
    "attacks.md": "[how to contribute](contributing.md) another.",
    "distributed.md": "the guide [Several processes](how-to/several-processes.md) in short.",
    "experiments.md": "[what came of it](results/index.md).",
    "defaults.md": "[the tables](results/index.md), or [why removal is free](concepts/removal.md).",
    "security.md": "[what was tried against it](attacks.md).",
    "speed.md": "[all figures](results/bench.md).",
}
"""The next step of pages that are also read elsewhere; those under ``results/`` lead back to their index."""


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are not under ``docs/``."""
    for source, place in PLACES.items():
        if source != "README.md":
            files.append(File.generated(config, place, abs_src_path=str(ROOT / source)))
    for notebook in sorted((ROOT / "docs" / "tutorials").glob("*.ipynb")):
        place = f"tutorials/{notebook.stem}.md"
        files.append(File.generated(config, place, content=page_of(json.loads(notebook.read_text()))))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links as they are right on GitHub become links of the site; a next step ends every page."""
    place = page.file.src_uri
    source = next((s for s, p in PLACES.items() if p == place and s != "README.md"), f"docs/{place}")
    markdown = re.sub(
        r"(?<=\]\()(?!https?:|#)([^)#\s]+)", lambda match: _link(match[1], source, place), markdown
    )
    markdown = re.sub(r"(?<=```python\n)# needs .*\n", "", markdown)  # that is for the tests
    if '<div class="fading">' in markdown:  # the data in the page: a browser fetches no file from the disk
        data = (ROOT / "docs" / "assets" / "fading.json").read_text().strip()
        markdown = markdown.replace(
            '<div class="fading">',
            f'<script type="application/json" id="fading-data">{data}</script>\n<div class="fading">',
        )
    if place.startswith("results/") and place != "results/index.md":
        back = posixpath.relpath("results/index.md", posixpath.dirname(place))
        markdown += f"\n\nNext: [all results]({back})."
        if not markdown.startswith("# "):
            markdown = f"# {Path(place).stem.replace('-', ' ')}\n\n{markdown}"
    elif place in NEXT:
        markdown += f"\n\nNext: {NEXT[place]}"
    if not markdown.rstrip().rpartition("\n\n")[2].startswith("Next: "):
        log.warning("%s does not end with a next step ('Next: ...')", place)
    return markdown


def _link(target: str, source: str, place: str) -> str:
    """A link of a file of the repository, as a link between pages of the site."""
    wanted = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    there = PLACES.get(wanted)
    if there is None:
        if source == f"docs/{place}":
            return target
        there = wanted.removeprefix("docs/")
    return posixpath.relpath(there, posixpath.dirname(place) or ".")


def page_of(notebook: dict[str, Any]) -> str:
    """A notebook as Markdown, its outputs included."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(re.sub(r"(?<=\]\()([\w-]+)\.ipynb", r"\1.md", source))
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {"text/plain": output.get("text", [])})
            if "image/png" in data:
                alt = "".join(data.get("text/plain", ["a figure"]))
                parts.append(f"![{alt}](data:image/png;base64,{''.join(data['image/png']).strip()})")
            else:
                parts.append(f'```text title="output"\n{"".join(data["text/plain"]).rstrip()}\n```')
    return "\n\n".join(parts)


def on_post_template(output: str, template_name: str, config: Any) -> str:
    """The page for what is not found, too."""
    return output.replace(SHIM, "/assets/file-search.js")


def on_post_page(output: str, page: Any, config: Any) -> str:
    """The theme would fetch what it needs to search from the disk; the site has its own."""
    output = output.replace(
        SHIM, posixpath.relpath("assets/file-search.js", posixpath.dirname(page.url) or ".")
    )
    for outside in re.findall(
        r'<(?:script|img|iframe|link)[^>]*(?:src|href)="?((?:https?:)?//[^"\s>]+)', output
    ):
        log.warning("%s would be fetched from elsewhere by %s", outside, page.url)
    return output


def on_env(env: Any, config: Any, files: Files) -> None:
    """Warn of public names that the reference lacks, or that have no docstring."""
    shown = config.plugins["autorefs"]._primary_url_map
    extensions = griffe.load_extensions(str(ROOT / "tools" / "site_docstrings.py"))
    package = griffe.load(
        "fadeout", search_paths=[str(ROOT / "src")], resolve_aliases=True, extensions=extensions
    )
    public = {path: package[path.removeprefix("fadeout.")] for path in _public(package)}
    here = {item.canonical_path for path, item in public.items() if path in shown}
    for path, item in public.items():
        if item.canonical_path not in here and not item.is_module:
            log.warning("%s is public and stands nowhere in the reference", path)
        members = item.members.values() if item.is_class else ()
        for each in (item, *(m for m in members if m.is_function and not m.name.startswith("_"))):
            if not each.has_docstring:
                log.warning("%s is public and has no docstring", each.path)


def _public(package: Any) -> list[str]:
    """The names of ``fadeout.__all__``, ``fadeout.plot``, and the names of the modules among them."""
    names = [f"fadeout.{name}" for name in (*(package.exports or ()), "plot")]
    for name in list(names):
        item = package[name.removeprefix("fadeout.")]
        if item.is_module:
            own = item.exports or [
                n
                for n, member in item.members.items()
                if not n.startswith("_") and not member.is_alias and (member.is_function or member.is_class)
            ]
            names += [f"{name}.{n}" for n in own]
    return names
