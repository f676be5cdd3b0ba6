"""The pods that Kubernetes and the operators make of a manifest of conf/kubernetes, as far as dlaunch sees it: names,
domain, environment, command, user, volumes."""
import yaml

IMAGE_ENTRYPOINT = ["/usr/local/bin/dlaunch"]
SECRETS = {("dlaunch-token", "token"): "00112233445566778899aabbccddeeff"}


def load(path):
    with open(path) as f:
        return [d for d in yaml.safe_load_all(f) if d]


def only(documents, kind):
    return next(d for d in documents if d["kind"] == kind)


def pod(name, service, template, env=(), args=None):
    """What Pod() of pods.py takes, and the container itself."""
    spec = template["spec"]
    container = spec["containers"][0]
    security = container["securityContext"]
    assert container["image"].startswith("localhost/dlaunch:"), container["image"]
    env = [*env, *(f"{e['name']}={SECRETS[tuple(e['valueFrom']['secretKeyRef'].values())]}" for e in container["env"])]
    paths = [m["mountPath"] for m in container["volumeMounts"]]
    assert [m["name"] for m in container["volumeMounts"]] == [v["name"] for v in spec["volumes"]]
    assert security["capabilities"] == {"drop": ["ALL"]} and security["allowPrivilegeEscalation"] is False
    return {"name": name, "service": service,
            "argv": [*container.get("command", IMAGE_ENTRYPOINT), *(args or container["args"])],
            "env": env, "user": (security["runAsUser"], 0), "read_only": security["readOnlyRootFilesystem"],
            "tmp": "/tmp" in paths, "container": container}


def indexed(name, service, spec, env=lambda _: (), args=None):
    assert spec.get("completions", 1) == spec.get("parallelism", 1)
    return [pod(f"{name}-{i}", service, spec["template"], [f"JOB_COMPLETION_INDEX={i}", *env(i)], args)
            for i in range(spec.get("completions", 1))]


def indexed_job(documents):
    job, service = only(documents, "Job"), only(documents, "Service")
    name = job["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    return indexed(name, service["metadata"]["name"], job["spec"])


def jobset(documents):
    whole = only(documents, "JobSet")
    name, job = whole["metadata"]["name"], whole["spec"]["replicatedJobs"][0]
    return [p for i in range(job["replicas"])
            for p in indexed(f"{name}-{job['name']}-{i}", name, job["template"]["spec"])]


def trainjob(documents):
    """The Trainer's torch plug-in: PET_* for the container 'node' of the step 'trainer'."""
    run, runtime = only(documents, "TrainJob"), only(documents, "TrainingRuntime")
    assert run["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    name, trainer = run["metadata"]["name"], run["spec"]["trainer"]
    job = runtime["spec"]["template"]["spec"]["replicatedJobs"][0]
    assert job["template"]["metadata"]["labels"] == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    spec = {**job["template"]["spec"], "completions": trainer["numNodes"], "parallelism": trainer["numNodes"]}
    assert spec["template"]["spec"]["containers"][0]["name"] == "node"

    def env(rank):
        return [f"PET_NNODES={trainer['numNodes']}", f"PET_NPROC_PER_NODE={trainer['numProcPerNode']}",
                f"PET_NODE_RANK={rank}", f"PET_MASTER_ADDR={name}-node-0-0.{name}", "PET_MASTER_PORT=29500"]
    return indexed(f"{name}-{job['name']}-0", name, spec, env, trainer["args"])


def mpijob(documents):
    """The MPI Operator, v2beta1: the launcher, and workers numbered from 0; all in the domain of the job's name."""
    job = only(documents, "MPIJob")
    name, replicas = job["metadata"]["name"], job["spec"]["mpiReplicaSpecs"]
    launcher, worker = replicas["Launcher"], replicas["Worker"]
    return [pod(f"{name}-launcher", name, launcher["template"], ["K_MPI_JOB_ROLE=launcher"]),
            *(pod(f"{name}-worker-{i}", name, worker["template"], ["K_MPI_JOB_ROLE=worker"])
              for i in range(worker["replicas"]))]


KINDS = {"indexed-job.yaml": indexed_job, "jobset.yaml": jobset, "trainjob.yaml": trainjob, "mpijob.yaml": mpijob}
