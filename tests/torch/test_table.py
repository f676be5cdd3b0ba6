#!/usr/bin/env python3
"""Every row of the tables of features and of variables in doc/torchrun.md names tests that exist and are run."""
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
        found = glob.glob(f"{ROOT}/tests/*/{file}.c") + glob.glob(f"{ROOT}/tests/*/{file}.py")
        texts = [open(path).read() for path in found]
        if file == "test_torchrun":
            texts += [open(f"{ROOT}/tests/torch/{name}.py").read() for name in ("command_lines", "environments")]
        name, text = re.escape(test), "\n".join(texts)
        defined = [rf'\w\("{name}",', rf"^START_TEST\({name}\)", rf"^def {name}\("]
        run = [rf'\w\("{name}",', rf"\btcase_add\w*\([^)]*\b{name}\b", rf"\b{name}\b(?!\()"]
        forms = [i for i in range(3) if re.search(defined[i], text, re.MULTILINE)]
        if not found:
            yield f"there is no {file}"
        elif not forms:
            yield f"{file} has no {test}"
        elif not re.search(run[forms[0]], text):
            yield f"{file} does not run {test}"


def main():
    with open(f"{ROOT}/doc/torchrun.md") as f:
        text = f.read()
    rows = []
    for title in ("## Feature by feature", "## Environment variables"):
        section = text.split(title, 1)[1].split("\n#", 1)[0]
        rows += [line for line in section.splitlines() if line.startswith("| ")][1:]
    failed = 0
    for row in rows:
        problems = list(problems_of(row))
        failed += bool(problems)
        for p in problems:
            print(f"doc/torchrun.md: {row.split('|')[1].strip()}: {p}")
    print("%d%%: Checks: %d, Failures: %d, Errors: 0" % (100 * (len(rows) - failed) // len(rows), len(rows), failed))
    sys.exit(1 if failed else 0)


main()
