//! What a host must have to run Lockstep well: seen, why it matters, what to do.
