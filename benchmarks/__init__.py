"""Measurements of noukii beside what people use now; docs/benchmarks.md holds the results."""
