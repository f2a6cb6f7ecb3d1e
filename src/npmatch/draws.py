"""Seeds as a function of (seed, counters): step k draws the same numbers in every process and after every resume.

No state of a random generator is saved. Before each step the loop calls `torch.manual_seed(mix(seed, step))`, and all
random numbers of that step come from the default generators.
"""

from __future__ import annotations

import zlib

_MASK = (1 << 64) - 1


def mix(seed: int, *counters: int | str) -> int:
    """A 63-bit seed hashed from the arguments: equal arguments give equal seeds, neighbouring ones unrelated seeds."""
    state = seed & _MASK
    for counter in counters:
        number = zlib.crc32(counter.encode()) if isinstance(counter, str) else counter
        # splitmix64: the golden-ratio step, then two xor-multiply rounds.
        state = (state ^ (number * 0x9E3779B97F4A7C15)) + 0x9E3779B97F4A7C15 & _MASK
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state >> 1
