"""Local clusters: real node processes on this machine's loopback, for trying things out, for the demo and for tests.

`local` has the cluster, `plan` what is in its folder, `ports` finds free ports, `view` what a node reports,
`detached_process` the processes, which outlive the command that starts them.
"""
