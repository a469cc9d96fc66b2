"""`python -m eventlog.cli` is `eventlog`."""

from eventlog.cli import main

main()
