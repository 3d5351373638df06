"""What the delivery audit (`jobs/delivery_audit.py`) is made of.

`windows` has the length of a window and the arithmetic of windows, `comparison` is the transform: published against
delivered.
"""
