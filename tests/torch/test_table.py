#!/usr/bin/env python3
"""Every row of the README's table of features names tests that there are."""
import glob
import os
import re
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")


def problems_of(row):
    cells = [c.strip() for c in re.split(r"(?<!\\)\|", row)[1:-1]]
    named = re.findall(r"`(\w+): ([^`]+)`", cells[-1])
    if len(cells) != 4 or not named:
        yield "names no test"
    for file, test in named:
        found = glob.glob(f"{ROOT}/tests/*/{file}.[cp]*")
        texts = [open(path).read() for path in found]
        if file == "test_torchrun":
            texts += [open(f"{ROOT}/tests/torch/{name}.py").read() for name in ("command_lines", "environments")]
        word = [rf'"{re.escape(test)}"', rf"START_TEST\({re.escape(test)}\)", rf"^def {re.escape(test)}\("]
        if not found:
            yield f"there is no {file}"
        elif not any(re.search(w, text, re.MULTILINE) for w in word for text in texts):
            yield f"{file} has no {test}"


def main():
    with open(f"{ROOT}/README.md") as f:
        section = f.read().split("### Feature by feature", 1)[1].split("\n#", 1)[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    failed = 0
    for row in rows:
        problems = list(problems_of(row))
        failed += bool(problems)
        for p in problems:
            print(f"README.md: {row.split('|')[1].strip()}: {p}")
    print("%d%%: Checks: %d, Failures: %d, Errors: 0" % (100 * (len(rows) - failed) // len(rows), len(rows), failed))
    sys.exit(1 if failed else 0)


main()
