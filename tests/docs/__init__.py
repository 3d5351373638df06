"""The documentation is true: every snippet runs, every named file exists, every picture is what its script draws."""
