"""What each sub-command of `outrider` does. `coordinator/cli.py` parses and dispatches."""
