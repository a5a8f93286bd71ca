"""`python -m bluegrad.cli`."""

from bluegrad.cli import main

main()
