"""All options of torchrun's parser: their spellings, PET_* variables, defaults and choices."""
import os
import re
import subprocess
import tempfile


def text_of(default):
    """The default in the form of --print_config."""
    if isinstance(default, bool):
        return "yes" if default else "no"
    return "-" if default in (None, "", []) else str(default)


def of_torchrun():
    """{name: {"spellings", "variable", "default", "choices"}} from this interpreter's PyTorch."""
    from torch.distributed.argparse_util import check_env, env
    from torch.distributed.run import get_args_parser

    kept = dict(os.environ)
    for name in kept:
        if name.startswith("PET_"):
            del os.environ[name]
    try:
        actions = [a for a in get_args_parser()._actions if a.option_strings and a.dest != "help"]
    finally:
        os.environ.update(kept)
    return {a.dest: {"spellings": sorted(a.option_strings), "variable": isinstance(a, (env, check_env)),
                     "default": text_of(a.default), "choices": sorted(a.choices or [])} for a in actions}


class OfDlaunch:
    """The same facts from dlaunch under the name torchrun."""

    def __init__(self, build):
        self.folder = tempfile.TemporaryDirectory()
        self.torchrun = f"{self.folder.name}/torchrun"
        os.symlink(os.path.abspath(f"{build}/dlaunch"), self.torchrun)
        self.plain = self.config()

    def config(self, *args, **env):
        """{name: (value, source)}; {} if dlaunch refuses the command line."""
        done = subprocess.run([self.torchrun, *args, "--print_config"], env={"PATH": "/usr/bin:/bin", **env},
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        rows = [re.fullmatch(r"(\S+) +(.*?) {2,}(.*)", line) for line in done.stdout.splitlines()]
        return {r[1]: (r[2], r[3]) for r in rows if r} if done.returncode == 0 else {}

    def takes(self, name, *args):
        """Whether the option is accepted. Options that print something and exit are not in the configuration."""
        source = self.config(*args).get(name, (None, None))[1]
        return source == args[0] if name in self.plain else source is None and self.prints(*args)

    def prints(self, *args):
        return subprocess.run([self.torchrun, *args], stdin=subprocess.DEVNULL, capture_output=True).returncode == 0

    def option(self, name, theirs):
        default = self.plain.get(name, ("-", None))[0]
        word = theirs["choices"][0] if theirs["choices"] else default if default != "-" else "1"
        value = [] if theirs["default"] == "no" else [word]
        return {"spellings": [s for s in theirs["spellings"] if self.takes(name, s, *value)],
                "variable": self.reads(name, "1" if not value else word),
                "default": default,
                "choices": [c for c in theirs["choices"] if self.takes(name, theirs["spellings"][0], c)]}

    def reads(self, name, value):
        variable = f"PET_{name.upper()}"
        return self.config(**{variable: value}).get(name, (None, None))[1] == variable


def compare_options(theirs, build):
    """[(option, what, theirs, ours)] for each difference."""
    dlaunch, out = OfDlaunch(build), []
    for name in sorted(theirs):
        ours = dlaunch.option(name, theirs[name])
        out += [(name, what, theirs[name][what], ours[what]) for what in ours if theirs[name][what] != ours[what]]
    for name in sorted(set(dlaunch.plain) - set(theirs)):
        if dlaunch.reads(name, dlaunch.plain[name][0]):
            out.append((name, "variable", False, True))  # torchrun does not read this variable
    return out
