"""Colours and marks of the methods: told apart by both, so that neither colour nor shape alone must do."""

from fadeout.experiments import drawing

LIGHT = {
    "auto": "#0b6bcb",
    "swd": "#04955e",
    "gmp": "#bc57aa",
    "han": "#dd7603",
    "liu": "#536107",
    "rewinding": "#3aa7dc",
    "one_shot": "#5e3291",
    "plain_decay": "#754b35",
    "growing_decay": "#cd0019",
    "soft_pruning": "#254b76",
    "dense": "#404b50",
    "other": "#747c8a",
}
"""For each method, on white; chosen, within their hues, to differ for colour-blind eyes too."""

DARK = {
    "auto": "#5aa9f7",
    "swd": "#5eca92",
    "gmp": "#af5da6",
    "han": "#e53c15",
    "liu": "#ddcd65",
    "rewinding": "#5fdcff",
    "one_shot": "#a556fa",
    "plain_decay": "#ac6866",
    "growing_decay": "#fa857a",
    "soft_pruning": "#a299d3",
    "dense": "#d3dcdf",
    "other": "#8f98a8",
}
"""The same on a dark page."""

COLOURS = {**drawing.COLOURS, **LIGHT}

MARKERS = {
    "auto": "o",
    "swd": "D",
    "gmp": "s",
    "han": "^",
    "liu": "v",
    "rewinding": "P",
    "one_shot": "X",
    "plain_decay": "<",
    "growing_decay": ">",
    "soft_pruning": "p",
    "dense": "d",
    "other": "h",
}


def role(method: str) -> str:
    """The name of a method's colour.

    >>> role("swd"), role("soft"), role("a rival")
    ('swd', 'soft_pruning', 'other')
    """
    name = "soft_pruning" if method == "soft" else method  # "soft" is the colour of soft text
    return name if name in LIGHT else "other"


def rules() -> str:
    """The colours as style rules, light and dark."""
    light, dark = (
        ":root { " + " ".join(f"--{name}: {colour};" for name, colour in colours.items()) + " }"
        for colours in (LIGHT, DARK)
    )
    return f"{light}\n@media screen and (prefers-color-scheme: dark) {{\n  {dark}\n}}"
