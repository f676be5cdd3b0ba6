"""The environment variables that torchrun's own code reads or sets, found in the source of this interpreter's PyTorch:
torch/distributed/{run,launch,argparse_util}.py, launcher/ and elastic/. A PET_* variable is read for each option that
has one."""
import ast
import glob
import os
import re

DOCUMENT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../doc/torchrun.md")

ENVIRON = {"os.environ.get", "os.getenv", "environ.get", "getenv", "get_env_variable_or_raise", "os.environ.setdefault",
           "os.environ.pop"}


def sources():
    import importlib.util

    root = os.path.dirname(importlib.util.find_spec("torch.distributed").origin)
    files = [f"{root}/{name}.py" for name in ("run", "launch", "argparse_util")]
    return files + sorted(glob.glob(f"{root}/launcher/**/*.py", recursive=True)) + sorted(
        glob.glob(f"{root}/elastic/**/*.py", recursive=True))


def constants(trees):
    """{name: text} of assignments of a text to a name, anywhere: some variables are named by a constant."""
    found = {}
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        found[target.id] = node.value.value
    # a name for such a name
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id in found:
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        found[target.id] = found[node.value.id]
    return found


def is_environment(node):
    """os.environ, or what elastic/ calls the environment of one worker."""
    return ast.unparse(node) in ("os.environ", "environ", "worker_env", "env", "envs[local_rank]", "envs[0]", "env_vars")


def names_in(tree, texts):
    """(name, "reads" or "sets") of every use; a name that is not a text in the source is left out."""
    def text(node):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value
        return texts.get(node.id) if isinstance(node, ast.Name) else None

    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ENVIRON and node.args:
            yield text(node.args[0]), "reads"
        elif isinstance(node, ast.Subscript) and is_environment(node.value):
            yield text(node.slice), "sets" if isinstance(node.ctx, ast.Store) else "reads"
        elif isinstance(node, ast.Compare) and len(node.comparators) == 1 and is_environment(node.comparators[0]):
            yield text(node.left), "reads"
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict) and any(map(is_environment, node.targets)):
            for key in node.value.keys:
                yield text(key) if key else None, "sets"


def of_torchrun():
    """{name: "reads", "sets" or "reads, sets"}"""
    trees = []
    for path in sources():
        with open(path) as f:
            trees.append(ast.parse(f.read()))
    found, texts = {}, constants(trees)
    for tree in trees:
        for name, use in names_in(tree, texts):
            if name and name.replace("_", "").isalnum() and name.upper() == name:
                found.setdefault(name, set()).add(use)
    return {name: ", ".join(sorted(found[name])) for name in sorted(found)}


def of_document():
    """The same from the rows of doc/torchrun.md; PET_* is checked with the options (options.py)."""
    with open(DOCUMENT) as f:
        section = f.read().split("## Environment variables", 1)[1].split("\n## ", 1)[0]
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in section.splitlines()
            if line.startswith("| `")]
    return {name: row[1] for row in rows for name in re.findall(r"`([A-Z_]+)`", row[0])}


if __name__ == "__main__":
    for name, use in of_torchrun().items():
        print(f"{name:<45} {use}")
