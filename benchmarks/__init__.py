"""Benchmarks that measure the claims of the documentation, and the demo. They are not part of the installed package.

`python -m benchmarks` lists them. Each is a module that is run from the repository's root, `python -m benchmarks.step`,
and compares its variants in one run, so that their ratio holds whatever else the machine does. What they share:
command_line.py (options and errors), result.py (table and JSON), plot.py (figures), timing.py (clocks), flops.py
(arithmetic of a step) and synthetic.py (training on random images).
"""

import os

# As `npmatch` does, and before torch is imported: threads that spin while they wait slow a busy machine down.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
