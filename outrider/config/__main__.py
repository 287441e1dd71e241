"""`python -m outrider.config` prints docs/configuration.md."""

from outrider.config.render import reference

if __name__ == "__main__":
    print(reference(), end="")
