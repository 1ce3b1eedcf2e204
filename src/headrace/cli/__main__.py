"""`python -m headrace.cli` is the command too."""

from headrace.cli.main import main

if __name__ == "__main__":
    main()
