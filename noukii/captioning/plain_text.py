"""A language model's answer as one plain line: no control characters, role tokens, markdown or quotes.

Everything else stays letter for letter: brackets, weights such as (cat:1.2), <lora:x:0.8>, {red|blue},
underscores, digits, emoji and every script.
"""

from __future__ import annotations

import re
import unicodedata

NEWLINES = str.maketrans(dict.fromkeys("\r\v\f\x1c\x1d\x1e\x85\u2028\u2029", "\n"))
INVISIBLE = "\u200b\u200e\u200f\u2060\ufeff\ufffd\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u00ad"
"""Removed. The joiners U+200C and U+200D stay: Persian, Indic scripts and emoji are spelt with them."""

ASSISTANT = re.compile(r"<[|｜]\s*assistant\s*[|｜]>\s*:?", re.IGNORECASE)
TURN_END = re.compile(
    r"<[|｜]\s*(?:user|system|end[^<>|｜]{0,30}|eot_id|im_end|im_start|eos)\s*[|｜]>|</s>"
    r"|\n\s*(?:question|user|human) ?:",
    re.IGNORECASE,
)
"""Where the answer ends and an invented next turn begins."""
TOKEN = re.compile(
    r"<[|｜]/?[^<>|｜\n]{0,40}[|｜]>\s*:?"
    r"|</?(?:s|pad|unk|bos|eos|image|image_placeholder|patch_placeholder|begin_of_image|end_of_image)>"
    r"|<0x[0-9A-Fa-f]{2}>|<br\s*/?>|\[/?INST\]",
    re.IGNORECASE,
)
FENCE = re.compile(r"^\s*(?:`{3,}|~{3,})[\w+-]*\s*$")
RULE = re.compile(r"^\s*(?:[-*_=]\s*){3,}$")
HEADING = re.compile(r"^\s*#{1,6}\s+(.*?)[\s#]*$")
BULLET = re.compile(r"^\s*(?:[-*+•●▪◦‣·–—]\s+|>\s+|\(?\d{1,2}[.)]\s+(?=\D))+")
LINK = re.compile(r"!?\[([^\[\]]*)\]\((?:https?:)[^()\s]*\)")
EMPHASIS = re.compile(r"(?<!\*)(\*{1,3})(?=[^\s*])([^*\n]*[^\s*])\1(?!\*)")
ARTICLE = re.compile(r"^(?:An?|The|One|Two|Three|Four|Some|Several|His|Her|Their|In|On|At|With) ")
LABEL = re.compile(
    r"^(?:\*\*|__)?(?:(?:Main )?Subjects?|Clothing|Attire|Outfit|Background|Foreground|Middle Ground|"
    r"Midground|Setting|Objects?|Location|"
    r"Appearance|Scene|People|Person|Additional Details|Other Details)(?:\*\*|__)? ?:(?:\*\*|"
    r"__)? ?(?=[^\s*_])"
    r"|^(?:\*\*|__)?(?:Lighting|Colou?rs?|Colou?r Palette|Pose|Posture|Expression|Facial Expression|Style|"
    r"Composition|"
    r"Accessories|Text|Details|Features|Position|Perspective|Environment)(?:\*\*|__)? ?:(?:\*\*|"
    r"__)? ?(?=[^\s*_]\S*(?<![.!?]) \S+ \S)",
    re.IGNORECASE,
)
"""A section's name in front of its description. Short facts keep it (`Hair: long`, `Lighting: soft`)."""
FIRST_WORD = re.compile(r"^[A-Z][a-z]+(?=(?:\*\*)? ?:)")
TABLE_LINE = re.compile(r"^\s*\|(.*)\|\s*$")
TABLE_RULE = re.compile(r"^\s*\|?(?:\s*:?-{2,}:?\s*\|)+(?:\s*:?-{2,}:?\s*)?$")
SENTENCE = re.compile(r"^[A-Z]\S*(?: \S+){3,}[.!?][*_\"'”’)]*$")
"""A paragraph, not an item of a list: a capital, four words and more, a full stop."""
PRONOUN = re.compile(r"^(?:He|She|It|They|The|There|His|Her|Its|Their)\b")
SHORT_LINE = 60
"""A line of prose is broken at some width; shorter ones, each with a capital, are items of a list."""
CLOSED = tuple(".!?…。！？؟。।,;:，；：、")
DOUBLE_QUOTES = '"“”„‟«»「」『』＂'
SINGLE_QUOTES = re.compile(
    r"(?<![\w'’])['‘‚](?=[^\s'’\d])(?!n['’])([^'‘’\n]*(?:\w['’]\w+[^'‘’\n]*)*?[^\s'‘’])['’](?![\w'’])"
)


def plain_line(text: str) -> str:
    """Return `text` as one line of printable characters, without a chat model's markup."""
    text = _readable(text)
    text = _answer_only(text)
    text = _one_line(text.split("\n"))
    text = LINK.sub(r"\1", text)
    text = EMPHASIS.sub(r"\2", text)
    text = text.replace("**", "").replace("`", "")
    return _without_quotes(text)


def _readable(text: str) -> str:
    """Drop what no text file should hold: controls, halves of characters, replacement characters."""
    kept = []
    for char in text.translate(NEWLINES):
        if char == "\n" or char.isprintable():
            kept.append("" if char in INVISIBLE else char)
            continue
        category = unicodedata.category(char)
        if category in ("Cc", "Zs"):
            kept.append(" ")
        elif category == "Cf" and char not in INVISIBLE:
            kept.append(char)
        elif category == "Cn" and not (0xFDD0 <= ord(char) <= 0xFDEF or ord(char) & 0xFFFE == 0xFFFE):
            kept.append(char)  # a character newer than this Python
    return "".join(kept)


def _answer_only(text: str) -> str:
    """Remove leaked role and special tokens, an echoed question before and an invented turn behind."""
    answers = ASSISTANT.split(text)
    if len(answers) > 1 and (TURN_END.search(answers[0]) or not TOKEN.sub("", answers[0]).strip()):
        text = next((part for part in answers[1:] if TOKEN.sub("", part).strip()), answers[0])
    turns = [part for part in TURN_END.split(text) if TOKEN.sub("", part).strip(" \n:")]
    return TOKEN.sub(" ", turns[0]).lstrip(": \n") if turns else ""


def _one_line(lines: list[str]) -> str:
    """Join lines; list items and paragraphs stay apart by a comma or the full stop they have."""
    pieces: list[
        tuple[str, bool, str]
    ] = []  # text, is a heading, how it starts: "" (same item), item, paragraph
    fresh, last = True, ""
    for line in _without_tables(lines):
        if not line.strip() or FENCE.match(line) or RULE.match(line):
            fresh = True
            continue
        heading = HEADING.match(line)
        unmarked = heading.group(1) if heading else BULLET.sub("", line)
        is_item = heading is None and unmarked != line and bool(BULLET.match(line))
        body = " ".join(unmarked.split())
        if body:
            label = None if heading else LABEL.match(body)
            fresh = fresh or is_item or label is not None or (len(last) < SHORT_LINE and body[0].isupper())
            body = body[label.end() :] if label else body
            body = body[0].upper() + body[1:] if label and last.endswith((".", "!", "?")) else body
            whole = SENTENCE.match(body) is not None and (not is_item or PRONOUN.match(body) is not None)
            pieces.append((body, heading is not None, _start(fresh, whole)))
            last = body
        fresh = heading is not None
    if any(not heading for _, heading, _ in pieces):
        pieces = [piece for piece in pieces if not piece[1]]  # a heading names a section, not what is seen
    joined = ""
    for body, _, start in pieces:
        closed = joined.rstrip("*_\"'”’)").endswith(CLOSED)
        if joined and start == "paragraph" and joined.endswith(";"):
            joined = joined[:-1] + "."
        elif joined and start == "paragraph" and not closed:
            joined += "."
        elif joined and start and not closed:
            joined += ","
            body = ARTICLE.sub(lambda found: found.group(0).lower(), body)
            body = FIRST_WORD.sub(lambda found: found.group(0).lower(), body)
        joined += f" {body}" if joined else body
    return joined


def _start(fresh: bool, whole: bool) -> str:
    return "" if not fresh else "paragraph" if whole else "item"


def _without_tables(lines: list[str]) -> list[str]:
    """Make each row of a markdown table an item, `- car, red;`; its head and its rule are left out."""
    kept: list[str] = []
    for at, line in enumerate(lines):
        row = TABLE_LINE.match(line)
        following = lines[at + 1] if at + 1 < len(lines) else ""
        if TABLE_RULE.match(line) or (row and TABLE_RULE.match(following)):
            continue
        if row is None or line.count("|") < 3:
            kept.append(line)
            continue
        cells = [cell.strip() for cell in row.group(1).split("|") if cell.strip(" *_")]
        if len(cells) > 1 and LABEL.match(f"{cells[0]}: {cells[1]}"):
            del cells[0]
        if cells:
            kept.append(f"- {', '.join(_item(cell) for cell in cells)};")
    return kept


def _item(cell: str) -> str:
    """Return a table's cell as a part of a sentence: no full stop, `Red` in lower case."""
    cell = cell.rstrip(". ")
    return cell[0].lower() + cell[1:] if cell[1:2].islower() else cell


def _without_quotes(text: str) -> str:
    """Remove quotation marks; apostrophes (o'neil, the dogs' bowl) and inches (a 12" ruler) stay."""
    kept, is_open = [], False
    for at, char in enumerate(text):
        if char == '"':
            before, behind = text[at - 1 : at], text[at + 1 : at + 2]
            if before.isdigit() and not is_open:
                kept.append(char)
                continue
            opens = (not before or before.isspace() or before in "([{") and behind.strip() != ""
            is_open = opens
        elif char not in DOUBLE_QUOTES:
            kept.append(char)
    return SINGLE_QUOTES.sub(r"\1", "".join(kept))
