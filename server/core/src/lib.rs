//! The pure core: Raft, the lock table, sessions and read rounds.
