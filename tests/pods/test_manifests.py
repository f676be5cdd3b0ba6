#!/usr/bin/env python3
"""Compares conf/kubernetes with the schemas of Kubernetes and the operators: those of the packages kubernetes-validate
and kubeflow-trainer-api (TrainJob, TrainingRuntime, JobSet), which are installed into a virtual environment of their
own. The MPI Operator has no such package: its resource is compared with a list of fields, its pods with Kubernetes'.
"""
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FOLDER = os.path.join(ROOT, "conf", "kubernetes")
PACKAGES = ["kubernetes-validate==1.37.0", "kubeflow-trainer-api==2.3.0", "pyyaml==6.0.4"]
LIMIT = 300

# kubeflow.org/v2beta1, as its custom resource definition has it; True: any value.
REPLICA = {"replicas": int, "restartPolicy": ("OnFailure", "Never"), "template": "pod template"}
MPIJOB = {"apiVersion": ("kubeflow.org/v2beta1",), "kind": ("MPIJob",), "metadata": True, "spec": {
    "slotsPerWorker": int, "runLauncherAsWorker": bool, "sshAuthMountPath": str,
    "launcherCreationPolicy": ("AtStartup", "WaitForWorkersReady"), "mpiImplementation": ("OpenMPI", "Intel", "MPICH"),
    "mpiReplicaSpecs": {"Launcher": REPLICA, "Worker": REPLICA},
    "runPolicy": {"cleanPodPolicy": ("All", "Running", "None"), "ttlSecondsAfterFinished": int, "backoffLimit": int,
                  "activeDeadlineSeconds": int, "schedulingPolicy": True, "suspend": bool, "managedBy": str}}}


def check_fields(value, fields, where):
    if fields == "pod template":
        check_kubernetes({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}, "template": value})
    elif isinstance(fields, dict):
        for key in value:
            assert key in fields, f"{where}.{key}: there is no such field"
            check_fields(value[key], fields[key], f"{where}.{key}")
    elif isinstance(fields, tuple):
        assert value in fields, f"{where}: {value}"
    elif fields is not True:
        assert type(value) is fields, f"{where}: {value!r}"


def check_kubernetes(document):
    import kubernetes_validate
    kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


def check_model(document, name):
    """The models refuse wrong types and ignore unknown fields: what they did not keep was unknown."""
    import kubeflow_trainer_api.models as models
    kept = getattr(models, name).from_dict(document).to_dict()

    def compare(given, got, where):
        if isinstance(given, dict):
            for key in given:
                assert isinstance(got, dict) and (key in got or given[key] in ({}, None)), f"{where}.{key}: unknown"
                if key in got:
                    compare(given[key], got[key], f"{where}.{key}")
        elif isinstance(given, list):
            assert len(given) == len(got), where
            for i, (a, b) in enumerate(zip(given, got)):
                compare(a, b, f"{where}[{i}]")
    compare(document, kept, name)


def check_jobs(jobset):
    """The Job in each template of a JobSet, with Kubernetes' own schema."""
    for job in jobset["replicatedJobs"]:
        check_kubernetes({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job["name"]},
                          "spec": job["template"]["spec"]})


def check(document):
    kind = document["kind"]
    if kind == "JobSet":
        check_model(document, "JobsetV1alpha2JobSet")
        check_jobs(document["spec"])
    elif kind == "TrainingRuntime":
        check_model(document, "TrainerV1alpha1TrainingRuntime")
        check_jobs(document["spec"]["template"]["spec"])
    elif kind == "TrainJob":
        check_model(document, "TrainerV1alpha1TrainJob")
    elif kind == "MPIJob":
        check_fields(document, MPIJOB, "MPIJob")
    else:
        check_kubernetes(document)


def refuses(document, path, value):
    """Whether the check notices a wrong value."""
    import copy
    document = copy.deepcopy(document)
    at = document
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    try:
        check(document)
    except Exception:
        return True
    return False


def main():
    import yaml
    failed, documents = 0, {}
    for name in sorted(os.listdir(FOLDER)):
        with open(os.path.join(FOLDER, name)) as f:
            for document in filter(None, yaml.safe_load_all(f)):
                documents[document["kind"]] = document
                try:
                    check(document)
                    print(f"manifests: {name}: {document['kind']}: ok")
                except Exception as why:
                    failed += 1
                    print(f"manifests: {name}: {document['kind']}: FAILED\n{why}")
    wrong = [("Job", ["spec", "complections"], 2), ("Job", ["spec", "completions"], "two"),
             ("JobSet", ["spec", "replicatedJob"], []), ("JobSet", ["spec", "failurePolicy", "maxRestarts"], "many"),
             ("TrainJob", ["spec", "trainer", "nodes"], 2), ("MPIJob", ["spec", "launcher"], 1),
             ("TrainingRuntime", ["spec", "mlPolicy", "nodes"], 2)]
    unnoticed = [w for w in wrong if not refuses(documents[w[0]], *w[1:])]
    for w in unnoticed:
        print(f"manifests: a wrong {w[0]} passes: {w[1:]}")
    count = len(documents) + len(wrong)
    print(f"{count - failed - len(unnoticed)} passed, {failed + len(unnoticed)} failed")
    return bool(failed or unnoticed)


def in_environment():
    """Runs this file in the virtual environment, which is made first."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.environ.get("HOME", "/tmp"), ".cache")
    environment = os.path.join(cache, "dlaunch", "kubernetes")
    python, stamp = os.path.join(environment, "bin", "python"), os.path.join(environment, "packages")
    if not os.path.exists(stamp) or open(stamp).read() != " ".join(PACKAGES):
        for command in (["/usr/bin/python3", "-m", "venv", environment],
                        [python, "-m", "pip", "install", "--quiet", *PACKAGES]):
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
            if done.returncode:
                print(f"SKIPPED: the manifests: {(done.stdout + done.stderr).strip().splitlines()[-1]}")
                return 0
        with open(stamp, "w") as f:
            f.write(" ".join(PACKAGES))
    return subprocess.run([python, "-B", os.path.abspath(__file__), "--here"], timeout=LIMIT).returncode


sys.exit(main() if sys.argv[1:] == ["--here"] else in_environment())
