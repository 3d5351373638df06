"""The parts of the job ordering gaps (`jobs/ordering_gaps.py`).

`lines` folds delivery records into lines of ranges, `gap_rows` turns lines into rows of the table, `row_proof` compares
delivery records with the rows of a topic.
"""
