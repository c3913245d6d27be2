#!/usr/bin/env python3
"""Records the demo as an animated SVG: runs it on a terminal, keeps what it draws, and writes each
picture for as long as it was there.

    cargo build --release -p quorate-cli
    scripts/record_demo.py docs/demo.svg target/release/quorate demo --once
"""

import fcntl
import html
import os
import pty
import re
import select
import struct
import sys
import termios
import time

COLUMNS, ROWS = 92, 25
CELL, LINE, PAD = 7.3, 16, 12
# Pictures that are shorter are left out.
FRAME_SECONDS = 0.45
# The end stays for a moment before the recording begins again.
END_SECONDS = 6
COLOURS = {"1": "b", "2": "d", "31": "r", "32": "g", "33": "y", "36": "c"}
STYLE = """text{font:12px ui-monospace,Menlo,Consolas,monospace;fill:#d8dee4;white-space:pre}
.b{font-weight:bold;fill:#fff}.d{fill:#8b98a5}.r{fill:#ff7b72}.g{fill:#7ee787}.y{fill:#e3b341}.c{fill:#79c0ff}
g{visibility:hidden}"""


def record(command):
    """The output with its times: (seconds, text)."""
    process, terminal = pty.fork()
    if process == 0:
        os.environ["TERM"] = "xterm-256color"
        os.execvp(command[0], command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    began, parts = time.time(), []
    while True:
        ready, _, _ = select.select([terminal], [], [], 120)
        if not ready:
            sys.exit("the demo printed nothing for two minutes")
        try:
            data = os.read(terminal, 1 << 16)
        except OSError:
            break
        if not data:
            break
        parts.append((time.time() - began, data))
    _, status = os.waitpid(process, 0)
    if status:
        sys.exit(f"{command} failed: {status}")
    return parts


def frames(parts):
    """The pictures of the full screen, and the text after it: (seconds, lines)."""
    data, times = b"", []
    for seconds, part in parts:
        times.append((len(data), seconds))
        data += part
    def time_of(position):
        return max(seconds for start, seconds in times if start <= position)
    begin, end = data.find(b"\x1b[?1049h"), data.find(b"\x1b[?1049l")
    if begin < 0 or end < 0:
        sys.exit("the demo did not use the full screen")
    pictures = []
    for match in re.finditer(rb"\x1b\[H(.*?)\x1b\[J", data[begin:end], re.S):
        lines = match[1].decode().replace("\x1b[K", "").split("\r\n")
        if not pictures or pictures[-1][1] != lines:
            pictures.append((time_of(begin + match.start()), lines))
    rest = data[end:].decode().replace("\x1b[?1049l", "").replace("\x1b[?25h", "").split("\r\n")
    summary = [line for line in rest if line.strip()][-ROWS:]
    pictures.append((time_of(len(data) - 1), summary))
    kept = [pictures[0]]
    for picture in pictures[1:]:
        if picture[0] - kept[-1][0] >= FRAME_SECONDS or picture is pictures[-1]:
            kept.append(picture)
    return kept


def check_nothing_is_cut_off(pictures):
    """The demo ends a line that is too long for the terminal with an ellipsis."""
    cut = {line.split("…")[0] for _, lines in pictures for line in lines if "…" in line}
    cut |= {line for _, lines in pictures for line in lines if len(without_styles(line).rstrip()) > COLUMNS}
    if cut:
        sys.exit("cut off at %d columns:\n%s" % (COLUMNS, "\n".join(without_styles(line) for line in cut)))


def without_styles(line):
    return re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", line)


def line_svg(text, row):
    spans, style, column = [], "", 0
    for part in re.split(r"(\x1b\[[0-9;]*m)", text):
        code = re.fullmatch(r"\x1b\[([0-9;]*)m", part)
        if code:
            style = COLOURS.get(code[1], "")
            continue
        part = re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", part)
        if part.strip():
            kind = f' class="{style}"' if style else ""
            spans.append(f'<tspan x="{PAD + column * CELL:.0f}"{kind}>{html.escape(part)}</tspan>')
        column += len(part)
    if not spans:
        return ""
    return f'<text y="{PAD + LINE * (row + 1):.0f}">{"".join(spans)}</text>'


def svg(pictures):
    first = pictures[0][0]
    total = pictures[-1][0] - first + END_SECONDS
    width, height = COLUMNS * CELL + 2 * PAD, ROWS * LINE + 2 * PAD + 6
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img">',
        "<title>A recording of quorate demo: the leader is replaced while clients write</title>",
        f"<style>{STYLE}</style>",
        f'<rect width="100%" height="100%" rx="8" fill="#0d1117"/>',
    ]
    for number, (seconds, lines) in enumerate(pictures):
        begin = (seconds - first) / total
        end = (pictures[number + 1][0] - first) / total if number + 1 < len(pictures) else 1
        times, values = f"0;{begin:.4f};{end:.4f}", "hidden;visible;hidden"
        if begin == 0:
            times, values = f"0;{end:.4f}", "visible;hidden"
        body = "".join(line_svg(line, row) for row, line in enumerate(lines))
        out.append(
            f'<g>{body}<animate attributeName="visibility" dur="{total:.1f}s" '
            f'repeatCount="indefinite" calcMode="discrete" keyTimes="{times}" values="{values}"/></g>'
        )
    return "\n".join(out + ["</svg>", ""])


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    pictures = frames(record(sys.argv[2:]))
    check_nothing_is_cut_off(pictures)
    text = svg(pictures)
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        file.write(text)
    print(f"{sys.argv[1]}: {len(pictures)} pictures, {len(text)} bytes")


main()
