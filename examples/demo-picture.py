#!/usr/bin/env python3
"""Runs the demo in a terminal of its own and draws what it prints as an SVG.

    examples/demo-picture.py [BUILD_DIR] [FILE]      (make picture: build, doc/demo.svg)
"""
import html
import os
import pty
import re
import sys

COLUMNS, CHAR, LINE, MARGIN = 100, 8.43, 19, 16
STYLE = {"1": "b", "1;31": "r", "1;32": "g"}  # the colours that examples/demo.sh uses


def run(argv):
    """What the program prints to a terminal; exits when it fails."""
    pid, fd = pty.fork()
    if pid == 0:
        os.execvp(argv[0], argv)
    data = b""
    try:
        while chunk := os.read(fd, 65536):
            data += chunk
    except OSError:
        pass  # how a terminal whose last process has exited reads
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    text = data.decode(errors="replace").replace("\r\n", "\n")
    if status != 0:
        sys.exit(f"{text}{argv[0]} exited with {status}")
    return text


def spans(line, style):
    """([(style, text)], the style at the end of the line), at most COLUMNS characters."""
    out, left = [], COLUMNS
    for i, part in enumerate(re.split(r"\x1b\[([0-9;]*)m", line)):
        if i % 2:
            style = STYLE.get(part, "")
        elif part and left > 0:
            text = part if len(part) <= left else part[:left - 1] + "…"
            out.append((style, text))
            left -= len(text)
    return out, style


def draw(lines, title):
    width, height = COLUMNS * CHAR + 2 * MARGIN, len(lines) * LINE + 2 * MARGIN
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" '
           f'viewBox="0 0 {width:.0f} {height}">',
           f"<title>{html.escape(title)}</title>",
           "<style>text{font:14px 'DejaVu Sans Mono',Menlo,Consolas,monospace;fill:#d8dee9;white-space:pre}"
           ".b{font-weight:bold;fill:#fff}.r{font-weight:bold;fill:#ff6b6b}.g{font-weight:bold;fill:#8ce99a}</style>",
           f'<rect width="{width:.0f}" height="{height}" rx="6" fill="#1e2430"/>']
    style = ""
    for row, line in enumerate(lines):
        parts, style = spans(line, style)
        if parts:
            inner = "".join(f'<tspan class="{s}">{html.escape(t)}</tspan>' if s else html.escape(t) for s, t in parts)
            svg.append(f'<text x="{MARGIN}" y="{MARGIN + row * LINE + 14}" xml:space="preserve">{inner}</text>')
    return "\n".join(svg + ["</svg>", ""])


def main():
    build = sys.argv[1] if len(sys.argv) > 1 else "build"
    path = sys.argv[2] if len(sys.argv) > 2 else "doc/demo.svg"
    demo = os.path.join(os.path.dirname(os.path.abspath(__file__)), "demo.sh")
    lines = ["\x1b[1m$ make demo\x1b[0m", ""] + run([demo, build]).rstrip("\n").split("\n")
    with open(path, "w") as f:
        f.write(draw(lines, "The output of make demo"))


if __name__ == "__main__":
    main()
