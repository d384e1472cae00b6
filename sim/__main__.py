"""``python -m sim`` is ``bucketsim``."""

from sim.cli.main import main

if __name__ == "__main__":
    main()
