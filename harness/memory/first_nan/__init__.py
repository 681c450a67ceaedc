"""The first-NaN recorder: a small scan behind each op, which notes on the device where a value
stopped being finite.
"""
