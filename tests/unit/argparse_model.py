"""The options of test_options.c's random command lines, in Python's argparse: what torchrun would make
of each line of the file (words parted by tabs). Prints what test_options.c prints, in its order."""
import argparse
import io
import sys
from contextlib import redirect_stderr

FLAGS = ["standalone", "no_python"]
TEXTS = ["nnodes", "nproc_per_node", "node_rank", "role", "rdzv_id", "master_addr", "master_port",
         "max_restarts", "log_dir", "start_method", "monitor_interval"]


class Parser(argparse.ArgumentParser):
    """One option by two spellings is one candidate for a prefix, as in newer Pythons; an ambiguous
    word is an unknown one, so that it can stand among the script's arguments."""

    def _get_option_tuples(self, option_string):
        seen, unique = set(), []
        for t in super()._get_option_tuples(option_string):
            if id(t[0]) not in seen:
                seen.add(id(t[0]))
                unique.append(t)
        return unique

    def _parse_optional(self, arg_string):
        word = arg_string.split("=", 1)[0]
        if arg_string[:1] == "-" and len(arg_string) > 1 and arg_string != "--" and \
                word not in self._option_string_actions and \
                len(self._get_option_tuples(arg_string)) > 1:
            arg_string = "--unknown"
        return super()._parse_optional(arg_string)


def number(least):
    """The form that dlaunch checks at once, and torchrun later."""
    def convert(text):
        if not text.isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(text)
        return text
    return convert


TYPES = {"nnodes": number(1), "nproc_per_node": number(1), "max_restarts": number(0)}


def names(n):
    both = ["--" + n, "--" + n.replace("_", "-")]
    return both if both[0] != both[1] else both[:1]


def parser():
    p = Parser(prog="torchrun", add_help=False)
    for n in FLAGS:
        p.add_argument(*names(n), dest=n, action="store_true")
    for n in TEXTS:
        p.add_argument(*names(n), dest=n, default=argparse.SUPPRESS, type=TYPES.get(n),
                       choices=["spawn", "fork", "forkserver"] if n == "start_method" else None)
    p.add_argument("-m", "--module", action="store_true")
    p.add_argument("-r", "--redirects", default=argparse.SUPPRESS)
    p.add_argument("-t", "--tee", default=argparse.SUPPRESS)
    p.add_argument("script")
    p.add_argument("args", nargs=argparse.REMAINDER)
    return p


# As options.def has them.
ORDER = ["nnodes", "nproc_per_node", "node_rank", "role", "standalone", "rdzv_id", "master_addr",
         "master_port", "module", "no_python", "start_method", "max_restarts", "monitor_interval",
         "log_dir", "redirects", "tee"]


p = parser()
for line in open(sys.argv[1]):
    try:
        with redirect_stderr(io.StringIO()):
            v = vars(p.parse_args(line.rstrip("\n").split("\t")))
    except SystemExit:
        print("error")
        continue
    given = "".join(f"{n}={1 if v[n] is True else v[n]} " for n in ORDER
                    if n in v and v[n] is not False)
    print(given + ": " + " ".join([v["script"]] + v["args"]))
