"""The parts of a page that say where the numbers come from: failures, and the configuration of each group."""

import json
from collections.abc import Sequence
from html import escape
from typing import Any

from fadeout.experiments.report import words
from fadeout.experiments.report.groups import METRICS, Group, Place
from fadeout.experiments.report.records import Record


def failures(groups: Sequence[Group]) -> str:
    """A list of the runs that failed, with the last line of the traceback."""
    rows = [
        f'<li><a href="#{escape(group.anchor)}">{escape(_name(group, groups))}, seed '
        f"{escape(str(record['run'].get('seed')))}</a>: "
        f"<code>{escape(words.last_line(record.get('error')))}</code></li>"
        for group in groups
        for record in group.failed
    ]
    return f'<h3>Failed runs</h3>\n<ul class="failed">{"".join(rows)}</ul>' if rows else ""


def configurations(groups: Sequence[Group]) -> str:
    """A block to open for each group: its runs, and all their settings."""
    blocks = [_block(group, _name(group, groups)) for group in groups if group.records]
    if not blocks:
        return ""
    title = f"Configurations of all {len(blocks)}" if len(blocks) > 1 else "Configuration"
    return f'<details class="card configurations"><summary>{title}</summary>\n{"".join(blocks)}</details>'


def _name(group: Group, groups: Sequence[Group]) -> str:
    several = len({other.place for other in groups}) > 1
    place = words.where(group.place) if several and group.place != Place() else ""
    return ", ".join(part for part in (words.what(group), place) if part)


def _block(group: Group, name: str) -> str:
    # The identifier stands inside: a browser then opens the block itself when a link leads there.
    mark = words.mark(group)
    badge = f' <span class="badge">{escape(mark)}</span>' if mark else ""
    settings = {key: value for key, value in group.records[0]["run"].items() if key != "seed"}
    text = json.dumps(settings, indent=2, ensure_ascii=False)
    tracebacks = "".join(
        f"<pre>{escape(record.get('error') or '')}</pre>" for record in group.failed if record.get("error")
    )
    return (
        f"<details><summary>{escape(name)}{badge}</summary>\n"
        f'<div class="configuration" id="{escape(group.anchor)}">{_runs(group.records)}\n{tracebacks}'
        f'<pre class="json">{escape(text)}</pre></div></details>\n'
    )


def _runs(records: Sequence[Record]) -> str:
    columns = {
        "seed": lambda record: record["run"].get("seed"),
        "before": lambda record: words.number(METRICS["before"](record)),
        "after": lambda record: words.number(record["after"]) if record["status"] == "done" else "failed",
        "weights left": lambda record: _thousands(record.get("parameters_left")),
        "operations left": lambda record: _thousands(record.get("operations_left")),
        "seconds": lambda record: words.number(record.get("seconds"), 1),
        "commit": lambda record: record.get("commit"),
        "machine": lambda record: record.get("machine"),
        "versions": lambda record: _versions(record.get("versions")),
        "hash": lambda record: record["hash"],
    }
    cells = {title: [_shown(show(record)) for record in records] for title, show in columns.items()}
    cells = {title: column for title, column in cells.items() if any(column)}
    head = "".join(f'<th scope="col">{title}</th>' for title in cells)
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>"
        for row in zip(*cells.values(), strict=True)
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _shown(value: Any) -> str:
    return "" if value is None else str(value)


def _thousands(value: float | None) -> str:
    return "" if value is None else f"{value:,}"


def _versions(versions: Any) -> str:
    if not isinstance(versions, dict):
        return _shown(versions)
    return ", ".join(f"{name} {number}" for name, number in versions.items())
