"""Figures of eventlog, each a ratio to a peer in one run, interleaved round by round: `python -m benchmarks --help`.

Absolute numbers say more about a disk than about a library; ratios of things done in turn, seconds apart, on one disk, can be rerun by a
sceptic. docs/performance.md says how they are taken and what they were.
"""
