"""The console: the parts of the user interface that all commands share, including the jobs.

`options` declares the options that several commands have, `access` those that name nodes and credentials, `errors`
prints errors with hints and has the exit codes, `screen` prints tables, `quantities` formats sizes and ages,
`interruption` makes blocking calls end on Ctrl-C, `log_format` formats the log of a long-running command.
"""
