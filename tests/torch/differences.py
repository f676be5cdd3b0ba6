"""Where dlaunch is not as torchrun is, and why. Whatever differs and is not here fails the test, and so
does a row that nothing falls under any more.

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
     "what libdlcoll inherits; a program that does not use it never sees the descriptors"),
    (ANY, ANY, "NODE_RANK", SET_HERE + "|None", r"\d",
     "GROUP_RANK under the name that many scripts look for"),
    (ANY, ANY, "MASTER_ADDR", "<host name>", r"127\.0\.0\.1",
     "all nodes are on this host, and its name may resolve to an address at which nothing listens"),
    (ANY, ANY, "TORCHELASTIC_ERROR_FILE", r"<new folder in TMPDIR>/<run id>_<random>/attempt_\d/\d/error\.json",
     r"<new folder in TMPDIR>/attempt_\d\.\d\.error\.json",
     "where no log files are asked for, one folder for the error files does: less to make at the start"),
    (ANY, "c10d.*", "MASTER_PORT", "<free port>", "<port>",
     "agents and workers share one port, so that a firewall needs to let in one"),
    (NEWEST, "signals-to-handle (unknown|empty)", "TORCHINDUCTOR_CACHE_DIR", ANY, SET_HERE,
     "a side effect of the modules that torchrun imports to print a warning"),
    # --- restarts
    (ANY, "c10d, a restart", "TORCHELASTIC_RESTART_COUNT", "0", "1",
     "one number for the whole job: on the node whose workers did not fail torchrun counts no restart"),
    # --- how options are written
    (NEWEST, "prefix of both spellings|mixed dashes|an argument that is a prefix of two options", "exit|workers", ANY, ANY,
     "an ambiguity of older Pythons' argparse; newer ones take it as dlaunch does"),
    (NEWEST, "PET_STANDALONE=true", "exit|workers", ANY, ANY, "a word that means yes is taken as yes"),
    (NEWEST, "option nnodes", "default", "1:1", "1", "the same, written shorter"),
    (NEWEST, "option node_rank", "default", "0", "any", "0 it is under the name torchrun, where it means anything"),
    (NEWEST, "option master_port", "default", "-", "29500", "that it is where torchrun sees that none was given"),
    (NEWEST, "option shutdown_timeout", "default", "-", "30", "that it is where torchrun sees that none was given"),
    (NEWEST, "option print_completion", "choices", ANY, ANY, "there is none for zsh and tcsh, and no Python package to ask"),
    (NEWEST, "c10d, an address of its own", "MASTER_ADDR", r"127\.0\.0\.2", r"127\.0\.0\.1",
     "the store is at the endpoint, where alone it listens"),
    (NEWEST, "virtual local rank, AMD's GPUs named", "(CUDA|HIP)_VISIBLE_DEVICES", ANY, ANY, "only NVIDIA's GPUs are known"),
    (NEWEST, "event-log-handler (empty|unknown)", "exit|workers", ANY, ANY,
     "no handler has an effect, since they are Python code: a warning for any name"),
    (NEWEST, "empty id", "TORCHELASTIC_RUN_ID", "<random number>", "<uuid>", "one form for all that are made up"),
    # --- Debian's
    (DEBIAN, ANY, "NCCL_ASYNC_ERROR_HANDLING", "1", SET_HERE, "its older name; PyTorch 1.13's NCCL needs none on a CPU"),
    (DEBIAN, ANY, "TORCH_NCCL_ASYNC_ERROR_HANDLING|TORCHELASTIC_SIGNALS_TO_HANDLE", SET_HERE, ANY,
     "1.13 does not know it yet"),
    (DEBIAN, "c10d.*", "TORCHELASTIC_USE_AGENT_STORE", "False", "True",
     "the launcher serves the workers' store, as newer torchruns do; 1.13's clients understand it"),
    (DEBIAN, "one node, two restarts|variables.*", "MASTER_PORT", "29500", "<free port>",
     "a job on one node takes a free port, as in newer torchruns"),
    (DEBIAN, "one node, two restarts|variables.*", "TORCHELASTIC_RUN_ID", "none", "<uuid>", "the same rule"),
]


class Differences:
    """Looks rows up for one version of torchrun, and remembers which were of use."""

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
