"""`python -m npmatch`, which torchrun needs, is the same as `npmatch`."""

from npmatch.cli import console_script

console_script()
