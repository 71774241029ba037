//! The sans-io write-ahead log: append, group commit, segments, recovery.
