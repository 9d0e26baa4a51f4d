"""The library's docstrings, which are plain text first, as Markdown for the reference."""

import re
from typing import Any

import griffe


class Plain(griffe.Extension):
    """Doctests become code, roles become names; what overrides without a docstring inherits one."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        for module in _modules(pkg):
            for each in module.classes.values():
                if not each.is_alias:
                    _inherit(each)


def _modules(module: griffe.Module) -> list[griffe.Module]:
    own = [each for each in module.modules.values() if not each.is_alias]
    return [module, *(inner for each in own for inner in _modules(each))]


def _inherit(owner: Any) -> None:
    """Give members without a docstring that of what they override."""
    for name, member in owner.members.items():
        if member.is_alias or member.docstring is not None:
            continue
        for base in owner.mro():
            above = base.members.get(name)
            if above is not None and above.docstring is not None:
                member.docstring = griffe.Docstring(above.docstring.value, parent=member)
                break


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
    return re.sub(
        r"^>>> .*?(?=\n\n(?!>>>)|\Z)", r"```pycon\n\g<0>\n```", text, flags=re.DOTALL | re.MULTILINE
    )
