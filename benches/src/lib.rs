//! Benchmarks: codec and apply under criterion, the ceiling program, and the quick comparison.
