"""`python -m npmatch` is the same as `npmatch`; torchrun needs it: `torchrun … -m npmatch train`."""

from npmatch.cli import console_script

if __name__ == "__main__":  # a process that multiprocessing spawns imports this module under another name
    console_script()
