"""Prints, as one JSON line, what a framework detects in the environment.   detected.py accelerate|..."""
import json
import os
import sys

from leave import leave


def accelerate():
    from accelerate import Accelerator
    from accelerate.utils import DistributedType
    a = Accelerator(cpu=True)
    assert a.distributed_type == DistributedType.MULTI_CPU, a.distributed_type
    import torch
    total = a.reduce(torch.tensor([float(a.process_index)]))
    seen = {"rank": a.process_index, "world": a.num_processes, "local": a.local_process_index, "sum": total.item()}
    a.end_training()
    return seen


def transformers():
    from transformers import TrainingArguments
    args = TrainingArguments(output_dir=sys.argv[2], use_cpu=True, report_to=[], ddp_backend="gloo")
    return {"rank": args.process_index, "world": args.world_size, "local": args.local_process_index}


def lightning():
    import pytorch_lightning
    from pytorch_lightning.plugins.environments import TorchElasticEnvironment
    assert TorchElasticEnvironment.detect()
    e = TorchElasticEnvironment()
    trainer = pytorch_lightning.Trainer(accelerator="cpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]),
                                        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]), strategy="ddp", logger=False,
                                        enable_checkpointing=False)
    chosen = trainer.strategy.cluster_environment
    assert isinstance(chosen, TorchElasticEnvironment), chosen
    e.validate_settings(num_devices=trainer.num_devices, num_nodes=trainer.num_nodes)
    return {"rank": e.global_rank(), "world": e.world_size(), "local": e.local_rank(), "node": e.node_rank(),
            "master": [e.main_address, e.main_port], "creates": e.creates_processes_externally}


def fabric():
    import torch
    from lightning_fabric import Fabric
    f = Fabric(accelerator="cpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]),
               num_nodes=int(os.environ["GROUP_WORLD_SIZE"]), strategy="ddp")
    f.launch()
    total = f.all_reduce(torch.tensor([float(f.global_rank)]), reduce_op="sum")
    return {"rank": f.global_rank, "world": f.world_size, "local": f.local_rank, "node": f.node_rank, "sum": total.item()}


def rules():
    """The rules of the frameworks, for the case that they are not installed."""
    env = os.environ
    torchelastic = "TORCHELASTIC_RUN_ID" in env  # torch.distributed.is_torchelastic_launched(), Lightning
    return {"rank": int(env["RANK"]), "world": int(env["WORLD_SIZE"]), "local": int(env["LOCAL_RANK"]),
            "node": int(env["GROUP_RANK"]), "torchelastic": torchelastic,
            "accelerate": int(env.get("LOCAL_RANK", -1)) != -1 and int(env["WORLD_SIZE"]) > 1,
            "transformers": int(env.get("LOCAL_RANK", "-1")) != -1}


seen = {f.__name__: f for f in (accelerate, transformers, lightning, fabric, rules)}[sys.argv[1]]()
print("SEEN " + json.dumps(seen), flush=True)
leave()
