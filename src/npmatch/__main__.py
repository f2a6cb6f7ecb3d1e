"""`python -m npmatch` is the same as `npmatch`; torchrun needs it: `torchrun … -m npmatch train`."""

from npmatch.cli import console_script

console_script()
