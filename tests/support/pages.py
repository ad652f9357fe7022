"""Reading pages of HTML: what is in them, and whether they are in order."""

import re
from html.parser import HTMLParser
from itertools import pairwise

_VOID = {"meta", "br", "img", "link", "input", "hr"}
_HEADINGS = ("h1", "h2", "h3", "h4")


class Page(HTMLParser):
    """A page that was read: its words and its elements in order, and what is
    not as it should be.
    """

    def __init__(self, html):
        super().__init__()
        self.tags, self.headings, self.mistakes, self.ids = [], [], [], []
        self.pictures = []
        self._open, self._texts, self._tables = [], [], []
        self.feed(html)
        self.close()
        self.text = " ".join(" ".join(self._texts).split())
        self.mistakes += [f"<{tag}> is not closed" for tag in self._open]
        self.mistakes += [f"id {name} twice" for name in set(self.ids) if self.ids.count(name) > 1]
        self.mistakes += [f"refers to {found}" for found in _references(html)]
        levels = [1, *self.headings]
        if any(after > before + 1 for before, after in pairwise(levels)):
            self.mistakes.append(f"headings {self.headings}")

    def handle_starttag(self, tag, attributes):
        told = dict(attributes)
        self.tags.append(tag)
        if tag not in _VOID:
            self._open.append(tag)
        if "id" in told:
            self.ids.append(told["id"])
        if tag in _HEADINGS:
            self.headings.append(int(tag[1]))
        if tag == "svg":
            self.pictures.append(told.get("aria-label", ""))
            if not self.pictures[-1]:
                self.mistakes.append("a picture without a text")
        if tag == "table":
            self._tables.append([])
        if tag in ("th", "td") and self._tables:
            self._tables[-1].append(tag)
        if any(name.startswith("on") for name in told) or tag in ("script", "iframe", "object"):
            self.mistakes.append(f"<{tag}> runs something")

    def handle_endtag(self, tag):
        if not self._open or self._open.pop() != tag:
            self.mistakes.append(f"</{tag}> closes something else")
        if tag == "table" and self._tables[-1][:2] != ["th", "th"]:
            self.mistakes.append("a table without headings")

    def handle_data(self, data):
        if self._open and self._open[-1] != "style":
            self._texts.append(data)


def _references(html):
    """What a browser would fetch, and identifiers that are not there."""
    found = re.findall(r"""(?:src|href|action|data)\s*=\s*["']?([^"'\s>]+)""", html)
    found += re.findall(r"url\(([^)]+)\)", html) + re.findall(r"@import[^;]*", html)
    ids = set(re.findall(r'id="([^"]+)"', html))
    is_inside = [f.startswith("data:image/png;base64,") or f.lstrip("#") in ids for f in found]
    return [f for f, inside in zip(found, is_inside, strict=True) if not inside]
