"""The jobs: Spark batch work on the tables that a channel fills, such as ordering gaps and delivery audits.

A job sees schemas and the Spark connector, never the protocol.
"""
