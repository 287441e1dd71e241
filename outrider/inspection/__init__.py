"""What model files are and whether they fit together, read in a process of its own.

`python -m outrider.inspection` does the reading; who asks is never harmed by what a file does to its reader.
"""
