"""What the documents say, as data: links, names in code font, code blocks, tables, commands."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^\]\[]+)\]\(([^)\s]+)\)")
_IMAGE = re.compile(r'(?:src|srcset)="([^"]+)"')
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Document:
    """One Markdown file of the product."""

    path: Path

    def __str__(self) -> str:
        return str(self.path.relative_to(ROOT))

    @cached_property
    def text(self) -> str:
        return self.path.read_text()

    @cached_property
    def prose(self) -> str:
        """The text without its code blocks."""
        return _FENCE.sub("", self.text)

    def links(self) -> Iterator[tuple[str, str]]:
        """Yield words and target of each link, and the target of each picture."""
        yield from _LINK.findall(self.prose)
        for target in _IMAGE.findall(self.prose):
            yield "", target

    def anchors(self) -> set[str]:
        """The anchors of the headings, as GitHub makes them."""
        return {_slug(heading) for heading in _HEADING.findall(self.prose)}

    def blocks(self, language: str) -> list[str]:
        return [code for found, code in _FENCE.findall(self.text) if found == language]

    def section(self, heading: str) -> str:
        """The text under a heading of any level, up to the next of the same level or above."""
        match = re.search(rf"^(#+) {re.escape(heading)}$", self.text, re.MULTILINE)
        if match is None:
            raise LookupError(f"{self} has no heading {heading!r}")
        rest = self.text[match.end() :]
        end = re.search(rf"^#{{1,{len(match[1])}}} ", rest, re.MULTILINE)
        return rest[: end.start()] if end else rest

    def rows(self, heading: str = "") -> list[list[str]]:
        """The cells of all table rows, without header lines, in the whole document or under a heading."""
        lines = (self.section(heading) if heading else self.prose).splitlines()
        rows = [_cells(line) for line in lines if line.startswith("|")]
        dashes = {number for number, row in enumerate(rows) if all(set(cell) <= set("-: ") for cell in row)}
        return [row for number, row in enumerate(rows) if number not in dashes and number + 1 not in dashes]


def documents() -> list[Document]:
    return [Document(path) for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])]


def document(name: str) -> Document:
    return Document(ROOT / name)


def in_code_font(cell: str) -> str:
    """The first word of a cell that is set in code font."""
    match = re.search(r"`([^`]+)`", cell)
    return match[1] if match else ""


def _cells(line: str) -> list[str]:
    # A bar inside code font is written \| in a table.
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def _slug(heading: str) -> str:
    plain = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
