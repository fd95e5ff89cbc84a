"""Running work in parallel: local threads, or Spark tasks, behind one runner.

``run_tasks`` applies a function to batches of descriptors, in this process for little work and as one Spark job
otherwise; DML and appending use it. ``run_jobs`` runs several such jobs and hands over the outcome of each descriptor
as jobs finish; rewriting uses it.

Rule: a task returns a picklable result, and only returned results are committed. Fail-safe: results that are not
committed, because another task failed or the caller stopped, are discarded; an error is the one that the task raised; a
retried or speculative attempt writes files under its own token, so attempts never overwrite each other.

Modules in reading order:

- ``runner``: ``run_tasks`` and ``run_jobs``, their batches, outcomes and errors; ordered ``parallel_map`` and
  ``prefetch`` for threads.
- ``worker``: code around a task in Spark's Python worker; errors on their way to the driver.
- ``shipping``: sends the package, with its kernels, to executors that do not have it.

May be imported by spark, dml, rewrite and everything above; imports transaction, write, scan and below.
"""
