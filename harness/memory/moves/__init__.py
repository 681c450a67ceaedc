"""Memory that is moved: sentinels that name their owner, streams with events, and a transport that
can fail.
"""
