"""The launcher dlaunch: `python -m dlaunch` is the command of the same name, run() starts a job from a program.

    import dlaunch

    result = dlaunch.run(["train.py", "--epochs", "3"], nproc_per_node=4, max_restarts=2)
    print(result.exit_status, result.report["restarts"])

Job is the same step by step: events as they come, signals, an end at any time.
"""
from .job import Event, Job, JobError, Result, run

__all__ = ["Event", "Job", "JobError", "Result", "run"]
