"""SGLang under the harness: the hooks in its scheduler processes, and the process that serves a
case.
"""
