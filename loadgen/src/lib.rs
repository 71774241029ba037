//! The load generator: simulated clients on glommio executors.
