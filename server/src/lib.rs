//! The Lockstep server: shard loops over the pure core, and the `lockstep` command.
