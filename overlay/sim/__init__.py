"""A deterministic simulator: the very machines of `overlay.protocol` in virtual time, with faults.

`world` moves time, connections and disks; `faults` breaks things; `workload` publishes; `checkers` watches the
guarantees; `scenarios` puts them together for `m4cast sim`. The same seed gives the same run, byte for byte.
"""
