"""`python -m deltaweave`: the command line."""

from deltaweave.cli import app

app()
