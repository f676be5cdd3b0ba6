"""Jobs whose workers must find the same environment under torchrun and under dlaunch."""
from compared import Case

STATIC = "--nnodes {n} --node_rank {i} --master_addr 127.0.0.1 --master_port {port} "
C10D = "--nnodes {n} --rdzv_backend c10d --rdzv_endpoint localhost:{port} --rdzv_id job "


def nodes(name, where, *rest, **more):
    """One launcher per text of `rest`."""
    n = len(rest)
    fill = lambda i: where.replace("{n}", str(n)).replace("{i}", str(i))
    return Case(name, *[fill(i) + rest[i] for i in range(n)], **more)


CASES = [
    nodes("static, 2 nodes x 3", STATIC, *2 * ["--nproc_per_node 3 script.py"]),
    nodes("static, 1 + 3 workers", STATIC, "--nproc_per_node 1 script.py", "--nproc_per_node 3 script.py"),
    nodes("static, 3 + 2 + 1 workers", STATIC, *["--nproc_per_node %d script.py" % n for n in (3, 2, 1)]),
    nodes("static, two roles", STATIC, "--role trainer --nproc_per_node 2 script.py",
          "--role reader --nproc_per_node 3 script.py"),
    nodes("static, one role on two of three nodes", STATIC, "--role trainer --nproc_per_node 2 script.py",
          "--role reader script.py", "--role trainer --nproc_per_node 2 script.py"),
    nodes("static, an id and logs", STATIC + "--rdzv_id exp-7 --log_dir {dir}/logs --max_restarts 3 ",
          *2 * ["--nproc_per_node 2 --tee 3 script.py"]),
    nodes("static by endpoint", "--nnodes {n} --node_rank {i} --rdzv_backend static --rdzv_endpoint 127.0.0.1:{port} ",
          *2 * ["script.py"]),
    nodes("c10d, 2 nodes x 3", C10D, *2 * ["--nproc_per_node 3 script.py"]),
    nodes("c10d, addresses given", C10D + "--local_addr 127.0.0.1 ", *2 * ["--nproc_per_node 2 script.py"]),
    nodes("c10d, the workers' own store", C10D, *2 * ["--nproc_per_node 2 script.py"],
          env={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}),
    nodes("c10d, 1:2 nodes", C10D.replace("{n}", "1:{n}") + "--max_restarts 2 ", *2 * ["--nproc_per_node 2 script.py"]),
    nodes("c10d, a restart", C10D + "--max_restarts 2 ", *2 * ["--nproc_per_node 2 script.py"],
          env={"CAPTURE_FAIL": "1:1:3"}),
    Case("one node, two restarts", "--max_restarts 2 --nproc_per_node 3 script.py", env={"CAPTURE_FAIL": "2:2:3"}),
    Case("one node, all settings by PET_*", "script.py a",
         env={"PET_NNODES": "1", "PET_NPROC_PER_NODE": "2", "PET_NODE_RANK": "0", "PET_MASTER_ADDR": "127.0.0.1",
              "PET_MASTER_PORT": "{port}", "PET_RDZV_ID": "kubeflow", "PET_MAX_RESTARTS": "1", "PET_ROLE": "worker"}),
    nodes("two nodes by PET_*", "", *2 * ["script.py a"],
          env={"PET_NNODES": "2", "PET_NPROC_PER_NODE": "2", "PET_RDZV_BACKEND": "static",
               "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": "{port}"},
          envs=[{"PET_NODE_RANK": "0"}, {"PET_NODE_RANK": "1"}]),
    Case("variables that are set already", "--nproc_per_node 2 script.py",
         env={"OMP_NUM_THREADS": "3", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3", "NCCL_ASYNC_ERROR_HANDLING": "3",
              "CUDA_VISIBLE_DEVICES": "2,1", "PYTHONUNBUFFERED": "1", "NODE_RANK": "5", "WORLD_SIZE": "17"}),
]
