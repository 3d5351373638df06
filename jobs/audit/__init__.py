"""The parts of the delivery audit (`jobs/delivery_audit.py`).

`windows` has the length of a window and the arithmetic of windows, `comparison` is the transform: published against
delivered. `notified` joins rows with the profiles of clients.
"""
