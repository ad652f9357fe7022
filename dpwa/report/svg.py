"""Figures as SVG within a page: in the colours of the page, with text that stays text."""

from __future__ import annotations

import html
import io
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dpwa.report.style import DARK, INK

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NAMESPACE = re.compile(r"^\{([^}]*)\}")
_COLOUR = re.compile(r"#[0-9a-fA-F]{6}")
_DECIMALS = re.compile(r"(-?\d+\.\d)\d+")
_REFERENCE = re.compile(r"url\(#([\w-]+)\)")
_VARIABLES = {colour: f"var(--c{colour[1:]})" for colour in DARK}
_FONT = re.compile(r"font: ([\d.]+px) [^;]*")


def style_sheet() -> str:
    """Return the colours of all pictures as variables, for light and dark pages."""
    light = "".join(f"--c{colour[1:]}:{colour};" for colour in DARK)
    dark = "".join(f"--c{colour[1:]}:{other};" for colour, other in DARK.items())
    return f":root{{{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}"


def inline_svg(figure: Figure, name: str, alt: str) -> str:
    """Return a figure as an element of HTML.

    Args:
        figure: it.
        name: of the picture: a word that no other picture of the page has.
        alt: what is to be seen, in words.
    """
    data = io.BytesIO()
    figure.savefig(data, format="svg", facecolor="none", metadata={"Date": None})
    root = ET.fromstring(data.getvalue())  # noqa: S314  (of matplotlib, and just written)
    _tidy(root, name)
    root.attrib = {
        "viewBox": root.attrib["viewBox"],
        "stroke-linejoin": "round",
        "role": "img",
        "aria-label": alt,
    }
    return "".join(_written(root))


def _tidy(root: ET.Element, name: str) -> None:
    """Drop what a page does not need, and have all names begin with that of the picture."""
    for parent in root.iter():
        for child in list(parent):
            if _local(child.tag) in ("metadata", "title", "style"):
                parent.remove(child)
    used = set()
    for element in root.iter():
        for key, value in element.attrib.items():
            used.update(_REFERENCE.findall(value))
            if _local(key) == "href" and value.startswith("#"):
                used.add(value[1:])
    for element in root.iter():
        attributes = {}
        for key, value in element.attrib.items():
            local, text = _local(key), value
            if local == "id":
                if value not in used:
                    continue
                text = f"{name}-{value}"
            elif local == "href":
                text = f"#{name}-{value[1:]}" if value.startswith("#") else value
            elif local in ("d", "points", "x", "y", "transform", "width", "height"):
                text = _DECIMALS.sub(r"\1", value)
            attributes[local] = _coloured(_REFERENCE.sub(rf"url(#{name}-\1)", text))
        if _local(element.tag) == "text" and "fill" not in attributes.get("style", ""):
            attributes["fill"] = _VARIABLES[INK]
        element.attrib = attributes


def _coloured(text: str) -> str:
    text = _FONT.sub(r"font-size: \1", text)
    return _COLOUR.sub(lambda found: _VARIABLES.get(found[0].lower(), found[0]), text)


def _written(element: ET.Element) -> Iterator[str]:
    """Yield an element as HTML has it: without namespaces, everything quoted."""
    tag = _local(element.tag)
    attributes = "".join(f' {key}="{html.escape(v)}"' for key, v in element.attrib.items())
    yield f"<{tag}{attributes}>"
    if text := (element.text or "").strip():
        yield html.escape(text)
    for child in element:
        yield from _written(child)
    yield f"</{tag}>"


def _local(tag: str) -> str:
    return _NAMESPACE.sub("", tag)
