"""The launcher dlaunch: `python -m dlaunch` is the command of the same name."""
