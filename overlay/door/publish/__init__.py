"""Publishing: a client's record batches become batches of the channel (`puts`), small ones together (`coalescing`).

`agreement` keeps the columns of a topic to their types, and `acks` sends acknowledgements.
"""
