#!/usr/bin/env python3
"""test_torchrun.py --warm"""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.argv.append("--warm")

import test_torchrun  # noqa: E402

test_torchrun.main()
