"""Running work in parallel: local threads, or Spark tasks, behind one function.

``run_tasks`` applies a function to batches of descriptors, in this process for little work and as one Spark job
otherwise. DML, rewriting and appending use it.

Rule: a task returns a picklable result, and only returned results are committed. Fail-safe: when a task fails, the
results of the others are discarded and its error is raised unchanged; a retried or speculative attempt writes files
under its own token, so attempts never overwrite each other.

Modules in reading order:

- ``runner``: ``run_tasks``, its batches, results and errors; ordered ``parallel_map`` and ``prefetch`` for threads.
- ``worker``: code around a task in Spark's Python worker; errors on their way to the driver.
- ``shipping``: sends the package to executors that do not have it.
- ``memory``: memory and cores of a task.

May be imported by spark, dml, rewrite and everything above; imports transaction, write, scan and below.
"""
