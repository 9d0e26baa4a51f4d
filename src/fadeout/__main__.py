"""``python -m fadeout``."""

from fadeout.cli import main

if __name__ == "__main__":
    main()
