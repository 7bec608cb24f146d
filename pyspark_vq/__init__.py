"""vq and Spark: topics as DataFrames, and reports on a whole cluster.

It uses vq's public API alone. Transformations are functions from DataFrames to DataFrames; sessions
and paths stay in the programs that call them. It needs the ``spark`` extra.
"""
