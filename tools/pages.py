"""What checkers and tests of the documentation share: the parts of a Markdown page.

Code is in fences that name its language; a fence without a name holds plain text. Comments before
a block say how tests run it:

    <!-- not run: REASON -->   it cannot run here
    <!-- before                code that readers need not see: it makes what the block uses
    ...
    -->
"""

import dataclasses
import re

RUNNABLE = ("sh", "python", "cpp")
LANGUAGES = (*RUNNABLE, "", "cmake", "toml", "yaml")  # the others are only shown


@dataclasses.dataclass
class Block:
    line: int  # of its first line of code, from 1 on
    language: str
    code: str
    before: str = ""
    not_run: str = ""


_FENCE = re.compile(r"^( *)(```+|~~~+) *(\S*)")
_COMMENT = re.compile(r"<!--(.*?)-->", re.DOTALL)


def page_names(root):
    """All pages of the project, relative to root."""
    found = [*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("packaging/**/*.md")]
    found += root.glob("models/*/card.md")
    return sorted(path.relative_to(root) for path in found if path.is_file())


def blocks_of(text, lost=None):
    """The fenced blocks of a page, in order. The list `lost` gets the lines of comments for tests
    that no block follows."""
    blocks, comments, lines = [], [], text.split("\n")
    at = 0
    while at < len(lines):
        line = lines[at]
        fence = _FENCE.match(line)
        if fence:
            end = at + 1
            while end < len(lines) and lines[end].strip() != fence.group(2):
                end += 1
            indent = len(fence.group(1))
            code = "".join(line[indent:] + "\n" for line in lines[at + 1 : end])
            blocks.append(_with_comments(Block(at + 2, fence.group(3), code), comments))
            comments, at = [], end + 1
        elif line.lstrip().startswith("<!--"):
            end = at
            while "-->" not in lines[end] and end + 1 < len(lines):
                end += 1
            comments.append((at + 1, "\n".join(lines[at : end + 1])))
            at = end + 1
        else:
            if line.strip():
                lost, comments = _lost(lost, comments), []
            at += 1
    _lost(lost, comments)
    return blocks


def _lost(lost, comments):
    if lost is not None:
        lost += [
            line for line, text in comments if re.match(r"\s*<!-- (?:before$|not run:)", text, re.M)
        ]
    return lost


def _with_comments(block, comments):
    for _, comment in comments:
        match = _COMMENT.search(comment)
        content = match.group(1) if match else ""
        if content.startswith(" not run:"):
            block.not_run = content.removeprefix(" not run:").strip()
        elif content.startswith(" before\n"):
            block.before += content.removeprefix(" before\n")
    return block


def without_code(text):
    """The page with fenced blocks and comments blanked; lines stay where they are."""
    lines, fence = [], None
    for line in text.split("\n"):
        match = _FENCE.match(line)
        if fence:
            lines.append("")
            if line.strip() == fence:
                fence = None
        elif match:
            fence = match.group(2)
            lines.append("")
        else:
            lines.append(line)
    return _COMMENT.sub(_blank, "\n".join(lines))


def prose_of(text):
    """The same without code spans."""
    spans = r"(?<!`)(`+)(?!`)(?:[^\n`]|\n(?!\n)|(?<!`)(?!\1(?!`))`+)+?\1(?!`)"
    return re.sub(spans, _blank, without_code(text))


def _blank(match):
    return re.sub(r"[^\n]", " ", match.group(0))


def links_of(text):
    """(line, target) of each link and picture."""
    prose = prose_of(text)
    inline = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
    definition = re.compile(r"^ {0,3}\[[^\]]+\]:\s*<?(\S+?)>?\s*$", re.MULTILINE)
    html = re.compile(r"\b(?:href|src|srcset)=\"([^\"]+)\"")
    for pattern in (inline, definition, html):
        for match in pattern.finditer(prose):
            yield prose.count("\n", 0, match.start(1)) + 1, match.group(1)


def anchors_of(text):
    """The anchors of a page's headings, as hosts of Git repositories make them."""
    anchors, seen = set(), {}
    for line in without_code(text).split("\n"):
        heading = re.match(r"^#{1,6} +(.*?)(?: +#+)? *$", line)
        if heading is None:
            continue
        anchor = slug(heading.group(1))
        count = seen.get(anchor, 0)
        seen[anchor] = count + 1
        anchors.add(f"{anchor}-{count}" if count else anchor)
    return anchors | set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text))


def slug(heading):
    """The anchor of a heading: lower case without punctuation, dashes for blanks, links as text."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
