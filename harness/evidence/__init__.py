"""Evidence by kind: what a target may show of a run, and the oracles that judge it.

A kind is one file. It has the record that a target adds to `Run.evidence`, and `ORACLES`: each with
its sentence, what a case needs for it, and its rank among the findings of a failure. The registry
of oracles is made of the files of this folder, so a new kind needs no other edit.

The parent process reads these files and never loads torch. So a kind imports torch, and whatever
loads torch, inside its functions. The catalog is made of these files. So a kind does not import
`harness.core.catalog` at the top, nor `harness.core.cases` or `harness.core.records`, which need
the catalog.
"""

NO_KINDS = frozenset({"compare", "decisions", "records", "thresholds"})
"""The other files of this folder: the comparator with its bounds, decisions, and `Run` itself."""
