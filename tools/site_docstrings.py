"""The library's docstrings, which are plain text first, as Markdown for the reference."""

import re
from typing import Any

import griffe


class Plain(griffe.Extension):
    """Doctests become code, formulas on lines of their own stay so, and roles become names."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """A docstring as Markdown.

    >>> print(as_markdown("See :class:`fadeout.Masks`.\\n\\n>>> 1 + 1\\n2"))
    See [`fadeout.Masks`][].
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    """
    text = re.sub(r":\w+:`~?(fadeout\.[\w.]+)`", r"[`\1`][]", text)
    text = re.sub(r":\w+:`~?([\w.]+)`", r"`\1`", text)
    text = re.sub(r"^ {4}(?=``)", "", text, flags=re.MULTILINE)
    return re.sub(r"^>>> .*?(?=\n\n(?!>>>)|\Z)", r"```pycon\n\g<0>\n```", text, flags=re.DOTALL | re.MULTILINE)
