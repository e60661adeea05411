"""Words per sentence of Markdown pages: `python docs/sentences.py README.md docs/how-to/*.md`.

Counted are paragraphs, list items and captions. Left out are code blocks, tables, headings,
quotations, HTML comments, the addresses of links, and fragments of fewer than four words. Inline
code counts as one word.
"""

from __future__ import annotations

import re
import statistics
import sys
from pathlib import Path

LONGEST = 25
FRAGMENT = 4
NOT_PROSE = (
    r"<!-- (results|demo-table)\b.*?<!-- /\1 -->",  # tables with their messages, made by programs
    r"<!--.*?-->",
    r"^([ \t]*)(`{3,}|~{3,}).*?^\1\2[ \t]*$",
    r"^[ \t]*(\||#|>).*?$",
)
BLOCK = re.compile(r"\n\s*\n|\n[ \t]*(?:[-*+]|\d+\.)[ \t]+")
ABBREVIATION = re.compile(r"\b(e\.g|i\.e|et al|vs|Sec|Eq|Fig|No|[A-Z])\.(?=\s)")
END = re.compile(r"(?<=[.!?])[)\"*_]*\s+")


def prose(text: str) -> str:
    """A page without what is not read as sentences."""
    for pattern in NOT_PROSE:
        text = re.sub(pattern, "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`\n]+`", "code", text)
    return re.sub(r"<https?://[^>]*>", "address", text)


def sentences(text: str) -> list[str]:
    """The sentences of a page, in order, without fragments."""
    found = []
    for block in BLOCK.split("\n" + prose(text)):
        whole = ABBREVIATION.sub(r"\1", " ".join(block.split()))
        found += [sentence for sentence in END.split(whole) if words(sentence) >= FRAGMENT]
    return found


def words(sentence: str) -> int:
    """The words of a sentence; signs that stand alone are none."""
    return len(re.findall(r"\S*\w\S*", sentence))


def mean_length(text: str) -> float:
    """Mean number of words per sentence of a page."""
    return statistics.fmean(words(sentence) for sentence in sentences(text))


def summary(file: str) -> str:
    """A line for a page, and one for each of its sentences that are too long."""
    text = Path(file).read_text(encoding="utf-8")
    lengths = [(words(sentence), sentence) for sentence in sentences(text)]
    lines = [f"{file}: mean {mean_length(text):.1f}, longest {max(lengths)[0]}"]
    lines += [f"  {length}: {sentence}" for length, sentence in lengths if length > LONGEST]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.writelines(map(summary, sys.argv[1:]))
