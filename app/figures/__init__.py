"""Figures: plain data in, plotly out; nothing here knows of the screen.

Each figure is two functions: one that makes plain data of nouns, exact and tested to the nanosecond,
and one that draws it. On every figure the same colour is the same bucket.
"""
