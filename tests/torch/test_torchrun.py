#!/usr/bin/env python3
"""dlaunch beside torchrun: the same command lines in the same environments must give workers the same
arguments and the same environment, and the same exit status; and every option must have the same spellings,
variable, default and words. What differs stands in differences.py.

    test_torchrun.py             against the facts of torchrun runs that are kept beside this file
    test_torchrun.py --live      against the torchrun of this interpreter's PyTorch, which must still agree
                                 with the facts kept of its version
    test_torchrun.py --record    keeps the facts of this interpreter's PyTorch
    test_torchrun.py --warm      as without an option, with workers that begin in warm interpreters; where the job may not
                                 restart, which it then must be able to, without the cases of failures
    ... NAME...                  only the cases with these names; "options", "variables": only those

BUILD says where dlaunch is (build).
"""
import glob
import json
import os
import platform
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import command_lines  # noqa: E402
import environments  # noqa: E402
from compared import Dlaunch, Torchrun, compare, facts_of  # noqa: E402
from differences import Differences  # noqa: E402
from jobs import summary, time_is_up  # noqa: E402
from options import compare_options, of_torchrun  # noqa: E402
import variables  # noqa: E402

BUILD = os.environ.get("BUILD", os.path.join(HERE, "../../build"))


def cases_for(version):
    """The command lines follow the newest torchrun; Debian's lacks half of the options."""
    if version.startswith("1."):
        return [case for case in environments.CASES if "--local_addr" not in case.lines[0]]
    return environments.CASES + command_lines.CASES


def path_of(version):
    return f"{HERE}/torchrun-{'.'.join(version.split('a')[0].split('.')[:2])}.json"


def question(case):
    """The inputs of a case, which are kept with its facts."""
    return {"lines": case.lines, "envs": case.envs, "program": case.program}


def has_newest_options(version):
    return not version.startswith("1.")


def record(launcher, cases, names):
    """With names, the facts of the other cases are kept."""
    path, old = path_of(launcher.version), {}
    if names and os.path.exists(path):
        with open(path) as f:
            old = json.load(f)["facts"]
    facts = {}
    for case in cases:
        if names and case.name not in names and case.name in old:
            facts[case.name] = old[case.name]
        elif not case.live_only and (not names or case.name in names):
            facts[case.name] = {**question(case), **facts_of(case, launcher)[0]}
            print(case.name, facts[case.name]["exit"], flush=True)
    with open(path, "w") as f:
        f.write('{"version": %s, "python": %s,\n' % (json.dumps(launcher.version), json.dumps(platform.python_version())))
        if has_newest_options(launcher.version):
            f.write('"variables": %s,\n' % json.dumps(variables.of_torchrun(), indent=0))
            f.write('"options": {\n%s},\n' % ",\n".join(json.dumps(name) + ": " + json.dumps(value, sort_keys=True)
                                                       for name, value in of_torchrun().items()))
        f.write('"facts": {\n')
        f.write(",\n".join(json.dumps(name) + ": " + json.dumps(value, sort_keys=True) for name, value in facts.items()))
        f.write("\n}}\n")


class Tally:
    def __init__(self):
        self.checks, self.failures = 0, 0

    def check(self, what, problems):
        self.checks += 1
        if problems:
            self.failures += 1
            print("\n".join([f"FAILED: {what}"] + ["    " + p for p in problems]), flush=True)


def show(difference):
    what, worker, theirs, ours = difference
    return f"{what}{' of ' + worker if worker else ''}: torchrun {theirs!r}, dlaunch {ours!r}"


def check_case(tally, case, differences, theirs, ours, printed):
    """`theirs` are facts with the inputs that they belong to."""
    if theirs is None or any(theirs[k] != v for k, v in question(case).items()):
        tally.check(f"{case.name}: the kept facts belong to other inputs", ["record them again: --record"])
        return
    bad = [d for d in compare(theirs, ours) if not differences.reason(case.name, d[0], d[2], d[3])]
    tally.check(f"{case.name} (torchrun {differences.version}: {' | '.join(case.lines)})",
                [show(d) for d in bad] + ["dlaunch printed: " + line for line in printed.splitlines()] if bad else [])


def check_options(tally, kept, live, differences):
    theirs = of_torchrun() if live else kept
    if live and kept:
        stale = [f"{name}: kept {kept.get(name)}, now {theirs.get(name)}" for name in sorted(set(kept) | set(theirs))
                 if kept.get(name) != theirs.get(name)]
        tally.check(f"the kept options are no longer torchrun {differences.version}'s", stale)
    bad = [d for d in compare_options(theirs, BUILD) if not differences.reason(f"option {d[0]}", *d[1:])]
    tally.check(f"options (torchrun {differences.version})",
                [f"{what} of {name}: torchrun {a!r}, dlaunch {b!r}" for name, what, a, b in bad])


def check_variables(tally, kept, live, version):
    """Each variable has its row in doc/torchrun.md, and no row is of another variable."""
    if live:
        now = variables.of_torchrun()
        tally.check(f"the kept variables are no longer torchrun {version}'s",
                    [f"{name}: kept {kept.get(name)}, now {now.get(name)}" for name in sorted({**kept, **now})
                     if kept.get(name) != now.get(name)])
    rows = variables.of_document()
    tally.check(f"variables (torchrun {version})",
                [f"{name}: torchrun {kept.get(name, 'does not use it')}, doc/torchrun.md {rows.get(name, 'has no row')}"
                 for name in sorted({**kept, **rows}) if kept.get(name) != rows.get(name)])


def main():
    live, names = "--live" in sys.argv, [a for a in sys.argv[1:] if not a.startswith("--")]
    chosen = lambda cases: [c for c in cases if not names or c.name in names]
    if "--record" in sys.argv:
        launcher = Torchrun()
        return record(launcher, cases_for(launcher.version), names)
    warm = "--warm" in sys.argv
    tally, dlaunch, ours, starts = Tally(), Dlaunch(BUILD, warm), {}, []
    torchrun = Torchrun() if live else None
    for path in [path_of(torchrun.version)] if live else sorted(glob.glob(f"{HERE}/torchrun-*.json")):
        kept = json.load(open(path)) if os.path.exists(path) else {"version": torchrun.version, "facts": {}}
        differences = Differences(kept["version"])
        cases = chosen(cases_for(kept["version"]))
        if warm:
            cases = [c for c in cases if c.may_restart() or not any("CAPTURE_FAIL" in env for env in c.envs)]
        if has_newest_options(kept["version"]) and (not names or "variables" in names):
            check_variables(tally, kept.get("variables", {}), live, kept["version"])
        if has_newest_options(kept["version"]) and (not names or "options" in names):
            check_options(tally, kept.get("options", {}), live, differences)
        for i, case in enumerate(cases):
            if i and time_is_up(f"{len(cases) - i} command lines"):
                names = names or [case.name]  # not all cases ran, so unused rows of differences.py are not reported
                break
            if case.live_only and not live:
                continue
            if case.name not in ours:
                ours[case.name] = facts_of(case, dlaunch)
                starts.append((ours[case.name][1].count(", warm"), case.name))
            theirs = kept["facts"].get(case.name)
            if live:
                theirs = {**question(case), **facts_of(case, torchrun)[0]}
                if not case.live_only and kept["facts"]:
                    stale = compare(kept["facts"].get(case.name, {"exit": None, "workers": {}}), theirs)
                    tally.check(f"{case.name}: the kept facts are no longer torchrun {torchrun.version}'s",
                                [f"{what} of {worker}: kept {a!r}, now {b!r}" for what, worker, a, b in stale])
            if warm and not case.may_restart() and theirs:
                for worker in theirs["workers"].values():
                    worker["env"]["TORCHELASTIC_MAX_RESTARTS"] = "1"
            check_case(tally, case, differences, theirs, *ours[case.name])
        if not names and not warm:
            tally.check("differences.py: rows that match no difference", [str(row) for row in differences.unused()])
    if warm and not names:
        jobs = sum(number > 0 for number, _ in starts)
        tally.check("workers that begin warm", [f"in {jobs} jobs only"] if jobs < 100 else [])
    summary(tally.checks, tally.failures)


if __name__ == "__main__":
    main()
