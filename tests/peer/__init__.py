"""llama.cpp's own server tests, run unmodified against `outrider serve`."""
