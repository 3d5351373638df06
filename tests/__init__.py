"""The tests, in a tree that mirrors the source.

Every folder here is a package, so that modules are named `tests.overlay...` for pytest, mypy and `python -m` alike, and
so that no `tests` package that a dependency happened to install can take the name.
"""
