"""The differences between dlaunch and torchrun, with their reasons. A difference that is not listed here fails the
test, and so does a row that matches no difference any more.

    (version of torchrun, case, what, its value, ours, the reason)

version, case and the values are regular expressions that must match the whole text; what is "exit",
"workers", "command", or the name of a variable; of the case "option <name>" it is a field of options.py.
"""
import re

ANY = ".*"
SET_HERE = r"\(inherited\)"
NEWEST, DEBIAN = r"2\..*", r"1\.13.*"

ROWS = [
    # --- for every job
    (ANY, ANY, "DLAUNCH_(SEGMENT|LISTEN)_FD", SET_HERE, "<fd>",
     "descriptors for libdlcoll; a program that does not use the library ignores them"),
    (ANY, ANY, "NODE_RANK", SET_HERE + "|None", r"\d",
     "GROUP_RANK under the name that many scripts use"),
    (ANY, ANY, "MASTER_ADDR", "<host name>", r"127\.0\.0\.1",
     "all nodes are on this host, and its name may resolve to an address at which nothing listens"),
    (ANY, ANY, "(TORCH_FR_DUMP|TORCH_NCCL_DEBUG_INFO)_TEMP_FILE|NCCL_DEBUG_FILE", SET_HERE, "<dir>/.*/attempt_.*",
     "what PyTorch and NCCL know of a failure is kept with the log files, where there are any"),
    (ANY, ANY, "TORCH_(FR|NCCL)_DUMP_ON_TIMEOUT|NCCL_DEBUG", SET_HERE, "1|WARN", "the same"),
    (ANY, ANY, "TORCHELASTIC_ERROR_FILE", r"<new folder in TMPDIR>/<run id>_<random>/attempt_\d/\d/error\.json",
     r"<new folder in TMPDIR>/attempt_\d\.\d\.error\.json",
     "without log files, one folder for all error files is enough: fewer folders to make at the start"),
    (ANY, "c10d.*", "MASTER_PORT", "<free port>", "<port>",
     "launchers and workers share one port, so that a firewall needs to admit only one"),
    (NEWEST, "signals-to-handle (unknown|empty)", "TORCHINDUCTOR_CACHE_DIR", ANY, SET_HERE,
     "a side effect of the modules that torchrun imports to print a warning"),
    # --- restarts
    (ANY, "c10d, a restart", "TORCHELASTIC_RESTART_COUNT", "0", "1",
     "one count for the whole job; torchrun does not count the restart on the node whose workers did not fail"),
    # --- how options are written
    (NEWEST, "prefix of both spellings|mixed dashes|an argument that is a prefix of two options", "exit|workers", ANY, ANY,
     "an ambiguity in the argparse of older Pythons; newer ones agree with dlaunch"),
    (NEWEST, "PET_STANDALONE=true", "exit|workers", ANY, ANY, "dlaunch accepts other words for yes"),
    (NEWEST, "option nnodes", "default", "1:1", "1", "the same, written shorter"),
    (NEWEST, "option node_rank", "default", "0", "any", "under the name torchrun the default is 0 where the option has an effect"),
    (NEWEST, "option master_port", "default", "-", "29500", "the same value, which torchrun applies later"),
    (NEWEST, "option shutdown_timeout", "default", "-", "30", "the same value, which torchrun applies later"),
    (NEWEST, "option print_completion", "choices", ANY, ANY, "dlaunch has completion for bash only"),
    (NEWEST, "virtual local rank, AMD's GPUs named", "(CUDA|HIP)_VISIBLE_DEVICES", ANY, ANY, "dlaunch supports NVIDIA's GPUs only"),
    (NEWEST, "event-log-handler (empty|unknown)", "exit|workers", ANY, ANY,
     "handlers are Python code, so dlaunch warns for any name and continues"),
    (NEWEST, "empty id", "TORCHELASTIC_RUN_ID", "<random number>", "<uuid>", "dlaunch makes all ids in one form"),
    # --- Debian's
    (DEBIAN, ANY, "NCCL_ASYNC_ERROR_HANDLING", "1", SET_HERE, "the older name of the variable; it has no effect on a CPU"),
    (DEBIAN, ANY, "TORCH_NCCL_ASYNC_ERROR_HANDLING|TORCHELASTIC_SIGNALS_TO_HANDLE", SET_HERE, ANY,
     "newer than 1.13"),
    (DEBIAN, "c10d.*", "TORCHELASTIC_USE_AGENT_STORE", "False", "True",
     "the launcher serves the workers' store, as newer torchruns do; 1.13's clients understand it"),
    (DEBIAN, "one node, two restarts|variables.*", "MASTER_PORT", "29500", "<free port>",
     "a job on one node takes a free port, as in newer torchruns"),
    (DEBIAN, "one node, two restarts|variables.*", "TORCHELASTIC_RUN_ID", "none", "<uuid>", "the same rule"),
]


class Differences:
    """Finds rows for one version of torchrun, and remembers which rows matched."""

    def __init__(self, version):
        self.version = version
        self.used = set()

    def reason(self, case, what, theirs, ours):
        for i, (version, name, kind, a, b, why) in enumerate(ROWS):
            full = lambda pattern, text: re.fullmatch(pattern, str(text), re.DOTALL)
            if full(version, self.version) and full(name, case) and full(kind, what) and full(a, theirs) and full(b, ours):
                self.used.add(i)
                return why
        return None

    def unused(self):
        return [row for i, row in enumerate(ROWS) if i not in self.used and re.fullmatch(row[0], self.version)]
