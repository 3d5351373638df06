"""`python -m m4cast` is the same as the `m4cast` command."""

from m4cast.cli import main

if __name__ == "__main__":
    main()
