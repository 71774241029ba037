//! Faults that users of other lock services and Raft libraries have met, played on purpose.
